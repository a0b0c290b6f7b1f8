"""`everstep experiments`."""

from everstep import config
from everstep.cli import options
from everstep.cli.command import new_app
from everstep.cli.output import aligned
from everstep.cli.resolving import import_modules
from everstep.engine import backend
from everstep.storage import json_text

app = new_app()


@app.command(epilog="Example: everstep experiments --import my_project.experiments")
def experiments(imports: options.Imports = None, json: options.Json = False) -> None:
    """List the registered experiments.

    Those of installed packages, everstep's own among them, and those that the imported modules register.
    """
    config.load_entry_points()
    if imports:
        backend.select(None)  # the modules may import Keras
        import_modules(imports)
    found = config.experiments()
    listed = aligned(list(found.items())) if found else "no experiments are registered"
    print(json_text(found) if json else listed)
