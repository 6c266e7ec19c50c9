"""A campaign: the points of one curve in its own folder, each measured once, resumable."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.common import files
from harness.common.errors import UsageError
from harness.mlperf_endpoints import official
from harness.mlperf_endpoints.official import Point

FILE = "campaign.json"


class Campaign(BaseModel):
    """What all points of a curve share, with whom the client asks and what; campaign.json of its folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoints: list[str]  # base addresses, without /v1
    model: str  # as the server names it
    tokenizer: str  # a folder or a name, of the client's token counts
    dataset: str | None = None  # MLPerf's cnn_eval.json, or one like it; None: the client's own, from the hub
    samples: int = official.SAMPLES
    client: str  # the program
    server: str = ""  # the command of a server that is started for it

    c_min: int
    c_max: int
    points: int = official.FEWEST + 1
    seconds: float | None = None  # of each point: a rehearsal; None: what the rules ask for
    seed_set: str

    @property
    def dataset_name(self) -> str:
        """MLPerf's name where the samples are as many as its own; else the file's."""
        if self.dataset is None or self.samples == official.SAMPLES:
            return official.DATASET
        return f"{Path(self.dataset).parent.name}_{Path(self.dataset).stem}"

    @property
    def levels(self) -> list[Point]:
        return official.points(self.c_min, self.c_max, self.points)

    def length(self, point: Point) -> float:
        """The seconds that a point is measured for."""
        return point.seconds if self.seconds is None else self.seconds


def folder_of(root: Path, point: Point) -> Path:
    return root / "points" / f"r{point.concurrency}"


def open_campaign(root: Path, campaign: Campaign) -> None:
    """Keeps a campaign in a folder. Raises UsageError where another one is in it."""
    path = root / FILE
    if path.exists() and (there := files.read(path, Campaign)) != campaign:
        differs = [name for name in Campaign.model_fields if getattr(there, name) != getattr(campaign, name)]
        raise UsageError(f"{root} holds a campaign with a different {', '.join(differs)}: choose another folder.")
    root.mkdir(parents=True, exist_ok=True)
    files.write_json(path, campaign.model_dump(mode="json"))
