"""Which data a run is about, how it is divided over clients, and what is done to images: `data` and `shift` of its
configuration."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedspm.base.errors import FedSPMError
from fedspm.base.schema import Names, Strict
from fedspm.data.readers.detect import read_path
from fedspm.data.readers.draft import SIDES, Draft, ReadOptions

OWN = "own"  # data.name of somebody's own data, which lies at data.path
IN_MEMORY = "arrays"  # data.name of a model that was fitted on arrays
DIVIDED = {  # data that comes divided over clients, and how
    "fed-isic2019": "fed-isic2019 comes divided (a client is a center)",
    "heart-disease": "heart-disease comes divided (a client is a hospital)",
    OWN: "your own data is divided already",
    IN_MEMORY: "a Federation is divided already",
}
CONSTRUCTED = ("clients", "true_components", "alpha_inter", "alpha_intra")  # what divides a pool of images
OF_TABLES = (
    "client_column",
    "label_column",
    "image_column",
    "split_column",
    "ignore",
    "categories",
    "skip",
)  # how own tables are read


class Data(Strict):
    """Which data set, and how it is divided over clients."""

    name: str = Field(
        "fashion-sample",
        description="fashion-sample (10,000 images, ships with the package), fashion-mnist, cifar10, cifar100, "
        "fed-isic2019, heart-disease (ships with the package), one of a plugin, or the path of your own data",
    )
    path: Path | None = Field(None, description="folder or archive of the data set, if it is not found by itself")
    clients: int = Field(8, ge=2, description="m, number of clients")
    true_components: int = Field(2, ge=1, description="hidden subgroups inside every client")
    alpha_inter: float = Field(1.0, gt=0, description="Dirichlet concentration of the classes over clients")
    alpha_intra: float = Field(2.0, gt=0, description="Dirichlet concentration of the true mixing weights")
    test_fraction: float = Field(0.3, gt=0, lt=1, description="share of every client's rows held out for testing")
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="evaluate on this share of the training rows instead of the test rows"
    )
    size: Annotated[int, Field(ge=SIDES[0], le=SIDES[1])] | None = Field(
        None, description="side of an image in pixels; if not given, its own if all are alike and at most 64, else 64"
    )
    client_column: str | None = Field(None, description="your own table: who a row belongs to")
    label_column: str | None = Field(None, description="your own table: the class of a row")
    image_column: str | None = Field(None, description="your own table: path of an image, relative to the table")
    split_column: str | None = Field(None, description="your own table: train or test")
    ignore: Names = Field((), description="your own table: columns that are left out")
    categories: Names = Field((), description="your own table: columns whose numbers stand for levels, not amounts")
    skip: bool = Field(False, description="leave rows and images of your own data out that cannot be read")
    without: Names = Field((), description="clients that are left out; `fedspm remove` adds to it")
    joined: dict[str, Path] = Field({}, description="clients that came later and their data; see `fedspm onboard`")

    @property
    def title(self) -> str:
        """What people call it."""
        if self.name != OWN or self.path is None:
            return self.name
        return self.path.stem if self.path.is_file() else self.path.name

    @property
    def tested_on(self) -> str:
        if self.validation_fraction:
            return "validation rows, which were held out of the training rows"
        return "test rows"

    def own(self) -> Draft:
        """Somebody's own data as it was found, with everything that is wrong with it."""
        if self.path is None:
            raise FedSPMError("data.name = 'own' needs a data.path: the folder or file of the data")
        return read_path(self.path, self.reading)

    @property
    def reading(self) -> ReadOptions:
        return ReadOptions(
            self.client_column,
            self.label_column,
            self.image_column,
            self.split_column,
            self.ignore,
            self.categories,
            self.skip,
            self.size,
        )

    @field_validator("path", "joined")
    @classmethod
    def _absolute(cls, path: Path | dict[str, Path] | None) -> Path | dict[str, Path] | None:
        """So that a run can be resumed from another folder."""
        try:
            if isinstance(path, dict):
                return {name: each.expanduser().resolve() for name, each in path.items()}
            return path and path.expanduser().resolve()
        except RuntimeError as error:
            raise ValueError(f"{error} Is the name behind ~ right?") from error


class Shift(Strict):
    """What clients and components do to the images."""

    colour: float = Field(0.3, description="red up and blue down, or the reverse; 0 switches it off")
    brightness: float = Field(0.5, description="height of the two brightness ramps; 0 switches them off")
    inversion: bool = Field(True, description="component 1 is the negative of the image")
    inverted_channels: Literal["all", "green"] = Field("all", description="which channels the negative inverts")
    permutation: bool = Field(True, description="label names are permuted for every client and component")


def meaningless(data: str) -> dict[str, set[str]]:
    """Settings that divide images over clients and shift them: data that comes divided has no use for them."""
    if data not in DIVIDED:
        return {}
    division = {*CONSTRUCTED} if data in (OWN, "heart-disease") else {*CONSTRUCTED, "test_fraction"}
    return {"data": division, "shift": set(Shift.model_fields)}
