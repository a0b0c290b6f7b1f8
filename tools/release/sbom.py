"""The software bill of materials of a wheel: the packages that it was tried with, as CycloneDX 1.6 JSON.

They are those of an environment into which nothing but the wheel was installed, found by what each package requires.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def bill(name: str, found: Iterable[Distribution], wheel: Path, epoch: int, extras: Iterable[str] = ()) -> str:
    """Returns the text of the file: the package `name`, what it needs of `found`, and what that needs."""
    installed = {canonicalize_name(each.metadata["Name"]): each for each in found}
    needs = _needs(name, installed, set(extras))
    own = {**_component(installed[name]), "hashes": [{"alg": "SHA-256", "content": sha256(wheel)}]}
    content: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": own,
        },
        "components": [_component(installed[each]) for each in sorted(needs) if each != name],
        "dependencies": [
            {"ref": purl(installed[each]), "dependsOn": [purl(installed[other]) for other in sorted(needs[each])]}
            for each in sorted(needs)
        ],
    }
    digest = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return json.dumps({"serialNumber": f"urn:uuid:{digest}", **content}, indent=2, ensure_ascii=False) + "\n"


def _needs(name: str, installed: dict[str, Distribution], extras: set[str]) -> dict[str, set[str]]:
    """Returns what each package needs, of those that the first one needs directly or through others."""
    needs: dict[str, set[str]] = {}
    asked: dict[str, set[str]] = {}
    left = [(name, extras)]
    while left:
        one, wanted = left.pop()
        if one in needs and wanted <= asked[one]:
            continue
        asked[one] = asked.get(one, set()) | wanted
        needs.setdefault(one, set())
        for line in installed[one].requires or ():
            requirement = Requirement(line)
            other = canonicalize_name(requirement.name)
            if other in installed and _applies(requirement, asked[one]):
                needs[one].add(other)
                left.append((other, set(requirement.extras)))
    return needs


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**default_environment(), "extra": extra}) for extra in {"", *extras})


def _component(package: Distribution) -> dict[str, Any]:
    """Returns what CycloneDX says of one package."""
    data = package.metadata
    component = {
        "type": "library",
        "bom-ref": purl(package),
        "name": data["Name"],
        "version": package.version,
        "purl": purl(package),
    }
    if data.get("Summary"):
        component["description"] = data["Summary"]
    if expression := data.get("License-Expression"):
        component["licenses"] = [{"expression": expression}]
    elif (text := data.get("License")) and "\n" not in text and text != "UNKNOWN":  # older ones hold the whole text
        component["licenses"] = [{"license": {"name": text}}]
    return component


def purl(package: Distribution) -> str:
    """Returns a package's URL, as other tools write it."""
    return f"pkg:pypi/{canonicalize_name(package.metadata['Name'])}@{package.version}"


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, as 64 hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
