"""Where the processes meet: our own variables, and those of Slurm and Kubernetes."""

import pytest

from everstep import gang
from everstep.errors import UsageError


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, None),  # the batch script itself
        (
            {gang.COORDINATOR: "a:1", gang.PROCESS_ID: "1", gang.NUM_PROCESSES: "2"},
            gang.Coordinates("a:1", 1, 2),
        ),
        (
            {gang.COORDINATOR: "job-0.svc:8476", "JOB_COMPLETION_INDEX": "3", gang.NUM_PROCESSES: "4"},
            gang.Coordinates("job-0.svc:8476", 3, 4),
        ),
        ({"JOB_COMPLETION_INDEX": "3"}, None),
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_ID": "1",
                "SLURM_PROCID": "2",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_STEP_NODELIST": "gpu[07-09,12],big1",
            },
            gang.Coordinates(f"gpu07:{61440 + 7 + 257}", 2, 4),
        ),
    ],
)
def test_coordinates(variables, expected):
    assert gang.find_coordinates(variables) == expected


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({gang.NUM_PROCESSES: "2"}, gang.COORDINATOR),
        ({gang.COORDINATOR: "a:1", gang.NUM_PROCESSES: "2"}, gang.PROCESS_ID),
        ({gang.COORDINATOR: "a:1", gang.PROCESS_ID: "2", gang.NUM_PROCESSES: "2"}, gang.PROCESS_ID),
        ({gang.COORDINATOR: "a", gang.PROCESS_ID: "0", gang.NUM_PROCESSES: "2"}, gang.COORDINATOR),
        ({gang.COORDINATOR: "a:1", gang.PROCESS_ID: "0", gang.NUM_PROCESSES: "two"}, gang.NUM_PROCESSES),
    ],
)
def test_wrong_coordinates(variables, key):
    with pytest.raises(UsageError) as raised:
        gang.find_coordinates(variables)
    assert raised.value.key == key


@pytest.mark.parametrize(
    ("nodes", "first"), [("a1", "a1"), ("a1,a2", "a1"), ("a[1-3]", "a1"), ("a[04,7]x,b", "a04x"), ("a[2],b", "a2")]
)
def test_first_node(nodes, first):
    assert gang.coordinates.first_node(nodes) == first
