"""What a run would cost on 8 to 16,384 devices: a model on paper, fed with figures measured on a small machine.

    python -m benchmarks.scale_model             # prints the tables
    python -m benchmarks.scale_model --measure   # measures on this machine first, and keeps the figures
    python -m benchmarks.scale_model --plot docs/images/scale.svg

`scale_measure.py` measures what one process costs; the formulas here say how often that happens for N of them. Nothing
here was run on more than a few processes. `docs/explanation/scale.md` is generated from the same tables by `report.py`.

All times are seconds, all sizes bytes, unless a name says otherwise.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.results import OURS, Results
from everstep.gang import roll_call, service

RESULTS = Path(__file__).parent / "results" / "scale_model.json"
SIZES = (8, 64, 512, 1024, 4096, 16384)
"""The numbers of devices in the tables."""

DETECTION = service.LOST_SECONDS + service.BEAT_SECONDS
"""Until a machine that vanished counts as lost. A process that dies on a living machine is seen at once."""
JOIN_LIMIT = roll_call.DEFAULT_JOIN_SECONDS
BEAT = service.BEAT_SECONDS


# -- what the model is fed with ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one process costs, as `scale_measure.py` has measured it.

    Attributes:
      copy: Bytes per second of copying the state in memory, for which training waits.
      write: Bytes per second that one process writes of a checkpoint.
      hash: Bytes per second of writing the manifest: SHA-256 of every file, and syncing it to disk.
      verify: Bytes per second of checking a checkpoint against its manifest.
      read: Bytes per second of reading a checkpoint's arrays.
      imports: From the start of a process until everything is imported.
      build: From there to the first step, without it: data, model, record.
      first_step: Tracing and compiling the first step, and running it.
      hello: For the first process, per process that says hello in the roll call.
      member: Encoding one process's entry in the answer of the roll call.
      meet: Of `gather`, per process.
      value: Per byte of a value that the service hands to one process.
      request: One request to the service.
      entry: Per entry of a folder of the service that is read.
      gather: Bytes per second of picking rows out of arrays.
      records: Records per second of reading TFRecord files from the beginning, without decoding.
    """

    copy: float
    write: float
    hash: float
    verify: float
    read: float
    imports: float
    build: float
    first_step: float
    hello: float
    member: float
    meet: float
    value: float
    request: float
    entry: float
    gather: float
    records: float

    @classmethod
    def of(cls, results: Results) -> "Measured":
        """Returns the medians of the cases that carry the names of these fields."""
        found = {case.notes["field"]: case.median(OURS) for case in results.cases if "field" in case.notes}
        return cls(**found)


@dataclasses.dataclass(frozen=True)
class Published:
    """A published rate of interruptions, as hours of one device between two of them."""

    name: str
    device_hours: float


LLAMA = Published("Llama 3", 54 * 24 * 16384 / 419)
RSC = Published("RSC-1", 8 * 24 * 1000 / 6.5)
OPT = Published("OPT-175B", 7.5 * 992)
RATES = (LLAMA, RSC, OPT)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The machines.

    Attributes:
      per_machine: Devices of a machine.
      per_process: Devices of a process: 8 is a process per machine, 1 a process per device.
      file_system: Bytes per second that the shared file system gives each device; it grows with the cluster.
      memory: Bytes of a machine's memory.
      device_hours: Hours of one device between two interruptions of the run.
    """

    per_machine: int = 8
    per_process: int = 8
    memory: float = 2e12
    file_system: float = 2e12 / 16384
    device_hours: float = LLAMA.device_hours

    def machines(self, devices: int) -> int:
        return max(1, devices // self.per_machine)

    def processes(self, devices: int) -> int:
        return max(1, devices // self.per_process)

    def between_failures(self, devices: int) -> float:
        """Returns the mean seconds between two interruptions: any device interrupts all."""
        return self.device_hours * 3600 / devices


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is trained.

    Attributes:
      name: What the tables call it.
      per_device: Parameters that each further device adds to the model; 0 for a model that stays as it is.
      parameters: The parameters of the largest model.
      divided: Whether the state is divided over the processes (fsdp), or every process holds all of it.
      sample: Bytes of a sample.
      samples: Samples per second that a device trains on.
      call: Seconds of a compiled call; before each, the processes agree that none was asked to stop.
    """

    name: str
    per_device: float
    parameters: float
    divided: bool
    sample: float
    samples: float
    call: float = 1.0

    def state(self, devices: int) -> float:
        """Returns the bytes of a checkpoint: weights and both moments of Adam in 32 bits."""
        grown = self.per_device * devices if self.per_device else self.parameters
        return 12 * min(self.parameters, grown)


LANGUAGE = Workload("language model", 1e9, 405e9, True, sample=4 * 8192, samples=5762 / 8192)
IMAGES = Workload("images", 0, 25e6, False, sample=3 * 224 * 224, samples=1000)


@dataclasses.dataclass(frozen=True)
class Design:
    """Which changes are made.

    Attributes:
      stop_by_request: The first process names the step to stop at a few seconds ahead, and the others read it with
        the heartbeats; today every call gathers a value of each process.
      own_records: Every process reads its own records of files in order; today it reads all records, and decodes
        its own at best, as it does not where it has random access.
    """

    stop_by_request: bool = False
    own_records: bool = False


TODAY = Design()
CHANGED = Design(*[True] * len(dataclasses.fields(Design)))


@dataclasses.dataclass(frozen=True)
class Model:
    """The formulas, for one machine's figures, cluster, workload and design; each takes the number of devices."""

    measured: Measured
    cluster: Cluster = Cluster()
    workload: Workload = LANGUAGE
    design: Design = TODAY

    # -- agreeing ------------------------------------------------------------------------------------------------------

    def meeting(self, devices: int, size: float = 5.0) -> float:
        """`gang.gather`: the first process reads N values one by one, and every process reads all N of them.

        N · meet + N · N · size · value
        """
        n = self.cluster.processes(devices)
        return 0.0 if n == 1 else n * self.measured.meet + n * n * size * self.measured.value

    def agreement(self, devices: int) -> float:
        """Before each call the processes meet, and nobody computes; with `stop_by_request` they do not."""
        return 0.0 if self.design.stop_by_request else self.meeting(devices)

    def lengths(self, devices: int) -> float:
        """Every process hears the length of each call from the service, while the call before it computes.

        N · request, as if they were served one after the other
        """
        n = self.cluster.processes(devices)
        return 0.0 if n == 1 else n * self.measured.request

    def beats(self, devices: int) -> float:
        """The work of the service for one heartbeat of all: each sets a value, and reads a folder of about two.

        The first process reads those of all others, too: N · (2 · request + 3 · entry)
        """
        n = self.cluster.processes(devices)
        return 0.0 if n == 1 else n * (2 * self.measured.request + 3 * self.measured.entry)

    def roll_call(self, devices: int) -> float:
        """The first process hears N hellos, encodes all N members once, and sends them to each process.

        N · (hello + member)
        """
        n = self.cluster.processes(devices)
        return 0.0 if n == 1 else n * (self.measured.hello + self.measured.member)

    def introductions(self, devices: int) -> float:
        """What the processes agree on at the start: configuration, packages, code, data, directory, step to restore.

        Six meetings, with digests of 66 bytes.
        """
        return 6 * self.meeting(devices, 66)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def part(self, devices: int) -> float:
        """Returns the bytes of the state that one process copies, writes and reads."""
        return self.workload.state(devices) / (self.cluster.processes(devices) if self.workload.divided else 1)

    def blocking(self, devices: int) -> float:
        """Training waits while each process copies its part, and for one meeting.

        part / copy + meeting
        """
        return self.part(devices) / self.measured.copy + self.meeting(devices)

    def writing(self, devices: int) -> float:
        """All writers at once, each as fast as it can, or as the file system lets it.

        part / min(write, share of the file system)
        """
        return self.part(devices) / min(self.measured.write, self._share())

    def hashing(self, devices: int) -> float:
        """Every process hashes what it writes.

        part / hash
        """
        return self.part(devices) / self.measured.hash

    def checkpoint(self, devices: int) -> float:
        """Returns the seconds from the copy to the commit, in the background: writing + hashing + meeting."""
        return self.writing(devices) + self.hashing(devices) + self.meeting(devices)

    def restoring(self, devices: int) -> float:
        """Every process checks its share of the files, and reads its part.

            state / N / verify + part / read, but no faster than the file system gives the bytes to a machine

        A machine reads a file once for all its processes, if its memory holds it.
        """
        checked, part = self._checked(devices), self.part(devices)
        neighbours = self.cluster.per_machine / self.cluster.per_process
        on_machine = min(self.workload.state(devices), neighbours * max(checked, part))
        through = on_machine / (self.cluster.file_system * self.cluster.per_machine)
        return max(checked / self.measured.verify + part / self.measured.read, through)

    def memory(self, devices: int) -> float:
        """Returns the bytes that a machine needs for the copies of the state that its processes write or read."""
        return self.part(devices) * self.cluster.per_machine / self.cluster.per_process

    def _checked(self, devices: int) -> float:
        return self.workload.state(devices) / self.cluster.processes(devices)

    def _share(self) -> float:
        """Returns the bytes per second that the file system gives one writer: of its machine's, if all write."""
        return self.cluster.file_system * (
            self.cluster.per_process if self.workload.divided else self.cluster.per_machine
        )

    # -- a restart -----------------------------------------------------------------------------------------------------

    def restart(self, devices: int) -> dict[str, float]:
        """Returns the parts of a restart, from the failure to the next step; all processes start at once."""
        detected = DETECTION if self.cluster.machines(devices) > 1 else 0.0
        return {
            "noticed": detected,
            "imports": self.measured.imports,
            "roll call": self.roll_call(devices),
            "agreeing": self.introductions(devices),
            "restoring": self.restoring(devices),
            "first step": self.measured.build + self.measured.first_step,
        }

    def restart_seconds(self, devices: int) -> float:
        return sum(self.restart(devices).values())

    # -- data and trackers ---------------------------------------------------------------------------------------------

    def reading(self, devices: int) -> float:
        """Seconds in which a process picks the rows that it needs for one second of training; more than 1 is too slow.

        samples · devices / N · sample / gather
        """
        rows = self.workload.samples * devices / self.cluster.processes(devices)
        return rows * self.workload.sample / self.measured.gather

    def reading_in_order(self, devices: int) -> float:
        """The same for files that are read from the beginning; with `own_records`, records of others are skipped.

        samples · devices / records, and with `own_records` divided by N
        """
        every = self.workload.samples * devices / self.measured.records
        return every / self.cluster.processes(devices) if self.design.own_records else every

    def tracked(self, devices: int, everybody: bool = False) -> float:
        """Returns the requests per second to a tracker: one per call from the first process, whatever N is."""
        return (self.cluster.processes(devices) if everybody else 1) / self.workload.call

    # -- goodput -------------------------------------------------------------------------------------------------------

    def interval(self, devices: int) -> float:
        """The best time between two checkpoints; one is written at a time, so it is no shorter than writing one."""
        between = self.cluster.between_failures(devices)
        best = optimal_interval(self.blocking(devices), between)
        return max(best, self.checkpoint(devices), self.workload.call)

    def goodput(self, devices: int) -> float:
        """The share of time in which new steps are computed: of failures and checkpoints, times that of agreeing and
        reading."""
        between, lost = self.cluster.between_failures(devices), self.checkpoint(devices)
        kept = goodput(self.interval(devices), self.blocking(devices), between, self.restart_seconds(devices) + lost)
        return kept * self.pace(devices)

    def pace(self, devices: int) -> float:
        """The share of the time of a call that is training: the rest is agreeing, and waiting for data and lengths."""
        call = self.workload.call
        return call / (max(call, call * self.reading(devices), self.lengths(devices)) + self.agreement(devices))

    def kept(self, devices: int) -> float:
        """The share of computed steps that are kept, which `everstep runs show` calls goodput."""
        between = self.cluster.between_failures(devices)
        return kept_steps(self.interval(devices), self.blocking(devices), between, self.checkpoint(devices))


# -- checkpoints and failures ------------------------------------------------------------------------------------------


def young(saving: float, between: float) -> float:
    """Returns Young's interval, √(2 · saving · between): the optimum where failures are rare."""
    return math.sqrt(2 * saving * between)


def optimal_interval(saving: float, between: float) -> float:
    """Returns the work between two checkpoints for which `goodput` is largest; it does not depend on the restart.

    Where its derivative is zero, exp((work + saving) / between) · (1 - work / between) = 1. The left side falls from
    more than 1 to 0 between 0 and `between`, so halving finds it.
    """
    low, high = 0.0, between
    for _ in range(100):
        middle = (low + high) / 2
        if (middle + saving) / between + math.log1p(-middle / between) > 0:
            low = middle
        else:
            high = middle
    return low


def goodput(work: float, saving: float, between: float, restart: float) -> float:
    """Returns the share of time that is kept work, for failures at random instants (Daly 2006).

    To work, and to save, without a failure takes

        between · exp(restart / between) · (exp((work + saving) / between) - 1)

    seconds on average, with all attempts; failures may also happen during a restart.
    """
    if between == math.inf:
        return work / (work + saving)
    exponent = restart / between
    if exponent + (work + saving) / between > 700:
        return 0.0
    return work / (between * math.exp(exponent) * math.expm1((work + saving) / between))


def kept_steps(work: float, saving: float, between: float, writing: float = 0.0) -> float:
    """Returns the share of computed steps that are kept: goodput without the seconds of restarts.

    Between two checkpoints there are `failures` attempts that end early; each also loses what was computed while the
    last checkpoint was still being written.
    """
    exponent = (work + saving) / between
    if exponent > 700:
        return 0.0
    failures = math.expm1(exponent)
    computed = between * failures * work / (work + saving) + failures * writing
    return work / computed


# -- what breaks first -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Limit:
    """Something that grows with N, and where it is too much.

    Attributes:
      name: What grows.
      cost: Its cost for a number of devices, as a share of what is bearable: 1 is the limit.
      bearable: The limit in words.
      change: What we would change.
    """

    name: str
    cost: Callable[[Model, int], float]
    bearable: str
    change: str

    def breaks_at(self, model: Model) -> int | None:
        """Returns the smallest power of two of devices, up to a million, that is too many; None for none."""
        sizes = (2**power for power in range(3, 21))
        return next((size for size in sizes if self.cost(model, size) > 1), None)


LIMITS = (
    Limit(
        "agreeing before each call",
        lambda model, devices: model.agreement(devices) / (0.1 * model.workload.call),
        "a tenth of a call",
        "`stop_by_request`",
    ),
    Limit(
        "hearing the length of each call",
        lambda model, devices: model.lengths(devices) / model.workload.call,
        "a call",
        "a process per machine, or longer calls",
    ),
    Limit(
        "heartbeats",
        lambda model, devices: model.beats(devices) / BEAT,
        f"{BEAT:g} s of work in {BEAT:g} s",
        "a watcher per machine",
    ),
    Limit(
        "roll call",
        lambda model, devices: model.roll_call(devices) / JOIN_LIMIT,
        f"the {JOIN_LIMIT:g} s that processes wait",
        "a longer `EVERSTEP_JOIN_SECONDS`",
    ),
    Limit(
        "agreeing at the start",
        lambda model, devices: model.introductions(devices) / 60,
        "a minute",
        "a process per machine",
    ),
    Limit(
        "the state in the memory of a machine",
        lambda model, devices: model.memory(devices) / model.cluster.memory,
        "2 TB",
        "a process per machine",
    ),
    Limit(
        "writing a checkpoint",
        lambda model, devices: (
            model.checkpoint(devices)
            / optimal_interval(model.blocking(devices), model.cluster.between_failures(devices))
        ),
        "the best interval",
        "a faster file system",
    ),
    Limit(
        "a restart",
        lambda model, devices: model.restart_seconds(devices) / (0.1 * model.cluster.between_failures(devices)),
        "a tenth of the time between failures",
        "spare machines, or fewer failures",
    ),
    Limit(
        "picking rows, language model",
        lambda model, devices: dataclasses.replace(model, workload=LANGUAGE).reading(devices),
        "a second per second",
        "a process per device",
    ),
    Limit(
        "picking rows, images",
        lambda model, devices: dataclasses.replace(model, workload=IMAGES).reading(devices),
        "a second per second",
        "a process per device",
    ),
    Limit(
        "reading records in order, images",
        lambda model, devices: dataclasses.replace(model, workload=IMAGES).reading_in_order(devices),
        "a second per second",
        "`own_records`: readers skip from length to length, without reading the data",
    ),
)


# -- tables ------------------------------------------------------------------------------------------------------------

Row = list[str]


def tables(measured: Measured) -> Iterator[tuple[str, Row, list[Row]]]:
    """Yields the title, header and rows of each table."""
    today, changed = Model(measured), Model(measured, design=CHANGED)
    images = dataclasses.replace(today, workload=IMAGES)
    images_changed = dataclasses.replace(changed, workload=IMAGES)
    yield "What would break first", *_limits(today, changed)
    yield (
        "Goodput",
        *_by_size(
            {
                "time between failures (Llama 3)": lambda n: seconds(today.cluster.between_failures(n)),
                "goodput today, a process per machine": lambda n: share(today.goodput(n)),
                "goodput today, a process per device": lambda n: share(_each(today).goodput(n)),
                "goodput changed, a process per machine": lambda n: share(changed.goodput(n)),
                "goodput changed, a process per device": lambda n: share(_each(changed).goodput(n)),
                "images today, a process per machine": lambda n: share(images.goodput(n)),
                "images changed, a process per machine": lambda n: share(images_changed.goodput(n)),
                "steps kept of those computed, changed": lambda n: share(changed.kept(n)),
            }
        ),
    )
    yield (
        "Goodput by rate of failures, changed, a process per machine",
        *_by_size(
            {
                f"{rate.name}: {rate.device_hours:,.0f} device hours": lambda n, rate=rate: share(
                    dataclasses.replace(changed, cluster=Cluster(device_hours=rate.device_hours)).goodput(n)
                )
                for rate in RATES
            }
        ),
    )
    yield "What each change brings: goodput with it and those above it, a process per machine", *_steps(today)
    yield (
        "A checkpoint of a language model, a process per machine",
        *_by_size(
            {
                "size": lambda n: size(today.workload.state(n)),
                "training waits, today": lambda n: seconds(today.blocking(n)),
                "training waits, changed": lambda n: seconds(changed.blocking(n)),
                "writing, each its part": lambda n: seconds(today.writing(n)),
                "hashing, each its part": lambda n: seconds(today.hashing(n)),
                "best interval today": lambda n: seconds(today.interval(n)),
                "best interval changed": lambda n: seconds(changed.interval(n)),
                "Young's interval": lambda n: seconds(young(changed.blocking(n), changed.cluster.between_failures(n))),
            }
        ),
    )
    yield (
        "A restart, a process per machine",
        *_by_size(
            {f"{name} today": lambda n, name=name: seconds(today.restart(n)[name]) for name in today.restart(8)}
            | {
                "all of it today": lambda n: seconds(today.restart_seconds(n)),
                "all of it changed": lambda n: seconds(changed.restart_seconds(n)),
                "the same of a small model today (images)": lambda n: seconds(
                    dataclasses.replace(today, workload=IMAGES).restart_seconds(n)
                ),
            }
        ),
    )
    each = _each(today)
    yield (
        "Control plane, a process per device",
        *_by_size(
            {
                "a meeting of all": lambda n: seconds(each.meeting(n)),
                "hearing the length of a call": lambda n: seconds(each.lengths(n)),
                f"heartbeats of {BEAT:g} s": lambda n: seconds(each.beats(n)),
                "roll call": lambda n: seconds(each.roll_call(n)),
                "requests to a tracker per second": lambda n: f"{each.tracked(n):g}",
                "the same if every process logged": lambda n: f"{each.tracked(n, everybody=True):,.0f}",
            }
        ),
    )
    yield (
        "Reading for one second of training, a process per machine",
        *_by_size(
            {
                "language model, rows today": lambda n: seconds(today.reading(n)),
                "language model, in order today": lambda n: seconds(today.reading_in_order(n)),
                "images, rows today": lambda n: seconds(images.reading(n)),
                "images, in order today": lambda n: seconds(images.reading_in_order(n)),
                "images, in order changed": lambda n: seconds(images_changed.reading_in_order(n)),
            }
        ),
    )


def _limits(today: Model, changed: Model) -> tuple[Row, list[Row]]:
    """Returns what breaks, the first at the top: at how many devices, with a process each and with one per machine."""
    header = ["what", "too much is more than", "per device", "per machine", "changed", "what we would change"]
    far = 2**21
    order = sorted(LIMITS, key=lambda limit: limit.breaks_at(_each(today)) or far)
    models = (_each(today), today, _each(changed))
    rows = [
        [limit.name, limit.bearable, *(devices(limit.breaks_at(model)) for model in models), limit.change]
        for limit in order
    ]
    return header, rows


def _steps(today: Model) -> tuple[Row, list[Row]]:
    """Returns the goodput with one change after the other."""
    models, design = {"today": today}, TODAY
    for change in ("stop_by_request", "own_records"):
        design = dataclasses.replace(design, **{change: True})
        models[f"`{change}`"] = dataclasses.replace(today, design=design)
    return _by_size({name: lambda n, model=model: share(model.goodput(n)) for name, model in models.items()})


def _each(model: Model) -> Model:
    """Returns the model for a process per device, the usual layout with GPUs."""
    return dataclasses.replace(model, cluster=dataclasses.replace(model.cluster, per_process=1))


def _by_size(columns: Mapping[str, Callable[[int], str]]) -> tuple[Row, list[Row]]:
    header = ["devices", *(f"{size:,}" for size in SIZES)]
    return header, [[name, *(column(size) for size in SIZES)] for name, column in columns.items()]


def devices(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def share(value: float) -> str:
    return f"{value:.1%}" if value >= 0.001 or value == 0 else "< 0.1%"


def size(value: float) -> str:
    return next(
        f"{value / unit:,.3g} {name}" for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if value >= unit
    )


def seconds(value: float) -> str:
    """Returns a duration in the unit that a person would use."""
    if value == 0:
        return "0"
    for unit, name in ((172_800, "days"), (7200, "h"), (120, "min"), (1, "s"), (1e-3, "ms")):
        if value >= unit:
            return f"{value / {'days': 86400, 'h': 3600, 'min': 60}.get(name, unit):.3g} {name}"
    return f"{value * 1e6:.3g} µs"


def generated(results: Results) -> str:
    """Returns the figures of `docs/explanation/scale.md` as Markdown."""
    machine, measured = results.machine, Measured.of(results)
    lines = [*summary(measured), ""]
    for title, header, rows in tables(measured):
        lines += [f"### {title}", "", *markdown(header, rows), ""]
    lines += ["### Measured here", ""]
    lines += [
        f"{results.date}; {machine['cores']} cores of {machine['processor']}, load {machine['load']}; Python "
        f"{machine['python']}, {', '.join(f'{name} {version}' for name, version in results.versions.items())}.",
        "",
    ]
    figures = [[case.name, amount(case.median(OURS), case.unit)] for case in results.cases if not case.series]
    lines += markdown(["what", "figure"], figures)
    for series in dict.fromkeys(case.series for case in results.cases if case.series):
        points = [case for case in results.cases if case.series == series]
        header = [series, *(f"{case.x:,.0f}" for case in points)]
        lines += ["", *markdown(header, [["", *(amount(case.median(OURS), case.unit) for case in points)]])]
    return "\n".join(lines)


def summary(measured: Measured) -> Iterator[str]:
    """Yields the answers in a few lines."""
    today, changed, most = Model(measured), Model(measured, design=CHANGED), SIZES[-1]
    for name, model in (("process per machine", today), ("process per device", _each(today))):
        count = next((size for size in (2**power for power in range(3, 21)) if model.goodput(size) < 0.9), None)
        yield f"- Today, with a {name}, goodput of a language model falls below 90 % at {devices(count)} devices."
    yield (
        f"- With all changes it would be {share(changed.goodput(most))} on {most:,} devices with a process per "
        f"machine, and {share(_each(changed).goodput(most))} with one per device."
    )
    found = [(limit.breaks_at(_each(today)), limit.name) for limit in LIMITS]
    at, name = min((at, name) for at, name in found if at is not None)
    yield f"- With a process per device, the first thing to break is {name}, at {at:,} devices."


def amount(value: float, unit: str) -> str:
    if unit == "s":
        return seconds(value)
    if unit in ("B", "B/s"):
        return size(value).replace("B", unit) if value >= 1e6 else f"{value:,.0f} {unit}"
    if unit == "share":
        return share(value)
    return f"{value:,.0f} {unit}"


def markdown(header: Row, rows: list[Row]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield f"| {' | '.join(row)} |"


# -- picture -----------------------------------------------------------------------------------------------------------


def draw(measured: Measured, path: Path) -> None:
    """Draws goodput, a checkpoint, a restart and the control plane over the number of devices."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "everstep"  # the same file for the same figures
    from matplotlib import pyplot

    today, changed = Model(measured), Model(measured, design=CHANGED)
    counts = [2**power for power in range(3, 15)]
    grey, orange, blue = "#868e96", "#d9480f", "#1c7ed6"
    panels: dict[str, dict[str, tuple[Callable[[int], float], str, str]]] = {
        "goodput": {
            "today, a process per device": (_each(today).goodput, grey, "--"),
            "today, a process per machine": (today.goodput, grey, "-"),
            "changed, a process per device": (_each(changed).goodput, orange, "--"),
            "changed, a process per machine": (changed.goodput, orange, "-"),
        },
        "seconds of a checkpoint": {
            "written and hashed today": (today.checkpoint, grey, "-"),
            "training waits today": (today.blocking, grey, "--"),
            "written and hashed changed": (changed.checkpoint, orange, "-"),
            "training waits changed": (changed.blocking, orange, "--"),
        },
        "seconds of a restart": {
            "today, a process per device": (_each(today).restart_seconds, grey, "--"),
            "today, a process per machine": (today.restart_seconds, grey, "-"),
            "changed, a process per machine": (changed.restart_seconds, orange, "-"),
            "time between failures": (today.cluster.between_failures, blue, ":"),
        },
        "seconds of the control plane, a process per device": {
            "agreeing before a call today": (_each(today).agreement, grey, "-"),
            "hearing the length of a call": (_each(today).lengths, blue, "-"),
            "heartbeats": (_each(today).beats, grey, "--"),
        },
    }
    figure, axes = pyplot.subplots(2, 2, figsize=(9.6, 6.4))
    for place, (title, curves) in zip(axes.flat, panels.items(), strict=True):
        for name, (curve, colour, style) in curves.items():
            place.plot(counts, [curve(count) for count in counts], style, color=colour, label=name)
        place.set_xscale("log", base=2)
        place.set_xticks(counts[::2], [f"{count:,}" for count in counts[::2]])
        if title == "goodput":
            place.set_ylim(0, 1.02)
        else:
            place.set_yscale("log")
        place.set_title(title, fontsize=9)
        place.set_xlabel("devices", fontsize=8)
        place.tick_params(labelsize=7)
        place.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure on this machine first, about four minutes")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves, for instance as SVG")
    arguments = parser.parse_args()
    if arguments.measure:
        from benchmarks import scale_measure

        scale_measure.measure().write(RESULTS)
    measured = Measured.of(Results.read(RESULTS))
    for title, header, rows in tables(measured):
        print(f"\n{title}")
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        for row in (header, *rows):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if arguments.plot:
        draw(measured, arguments.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
