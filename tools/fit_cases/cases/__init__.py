"""The cases, one file for each thing that a call of `fit` consists of; `CASES` has them in the order of the table."""

import importlib

from tools.fit_cases.case import CASES as CASES

for _name in ("networks", "models", "compiling", "data", "arguments", "callbacks", "steps"):
    importlib.import_module(f"tools.fit_cases.cases.{_name}")
