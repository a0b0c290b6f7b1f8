"""`python -m everstep` is `everstep`."""

from everstep.cli.main import main

raise SystemExit(main())
