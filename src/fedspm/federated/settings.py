"""How to train: the part of a run's configuration that an algorithm sees."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from fedspm.base.errors import FedSPMError
from fedspm.base.schema import Names, Strict, problem

OF_IMAGES = 0.01  # `predictor.learning_rate = "auto"`
PULL, FASTEST = 12.0, 0.1  # … of vectors: rate × visits of a row in all rounds, and the highest rate


class Block(Strict):
    """One block of the M-step: an encoder, and the local SGD with momentum that trains it."""

    encoder: str = Field(description="resnet, cnn, mlp, auto (by the shape of x), or package.module:factory")
    dimension: int = Field(32, ge=1, description="output size of the encoder")
    momentum: float = Field(ge=0, lt=1, description="starts at zero in every round")
    steps: int = Field(ge=0, description="local steps a round")
    batch_size: int = Field(128, ge=1, description="rows a step")


class Predictor(Block):
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto",
        description="at round 0; annealed to zero by a cosine over the horizon; auto: 0.01 for images, for vectors "
        "by rows and rounds, at most 0.1 (docs/decisions/0012)",
    )
    normalisation: Literal["group", "batch", "none"] = Field("group", description="normalisation inside the ResNet")
    refit_heads: float = Field(
        0.0,
        ge=0,
        description="penalty with which a client's own heads go to the optimum for its features before an evaluation; "
        "0: they stay as trained",
    )
    grid: int = Field(4, ge=1, description="the ResNet averages its last maps to grid × grid; 1: to a point")


class Router(Block):
    learning_rate: float = Field(0.01, gt=0, description="at round 0; annealed to zero by a cosine over the horizon")


class EM(Strict):
    """How EM starts and how its steps are scaled: docs/decisions/0003."""

    start: Literal["judged", "kmeans", "random", "true"] = Field(
        "kmeans",
        description="first responsibilities; judged: clusters with which held-out labels are predicted best; kmeans: "
        "the best separated clusters; true: those of constructed data, in process, to see what a start is worth; "
        "under privacy.noise always random: sums of clusters would leave",
    )
    hold: Annotated[int, Field(ge=0)] | Literal["ever"] = Field(
        20, description="rounds that keep the first responsibilities, at most half the schedule; ever: no E-step at all"
    )
    e_step: Literal["exact", "incremental", "auto"] = Field(
        "exact",
        description="exact: all rows in every round; incremental: only rows that the local steps visit, on their way, "
        "and the metrics have an estimate of the error; auto: incremental for images, exact for vectors; "
        "docs/performance.md",
    )
    normalisers: Literal["exact", "trained"] = Field(
        "trained",
        description="γ where a model is evaluated, saved and served; exact: as eq. 4 has it, trained: as SGD left it",
    )
    scaled_steps: bool = Field(True, description="divide the gradient of a component's head and tilt by its weight")
    server_step: float = Field(
        4.0, ge=1, description="first server step on γ and ξ, at most m/2, annealed to 1 at half time"
    )


class Privacy(Strict):
    """Clipping and noise on what leaves a client: docs/decisions/0010."""

    clip: Annotated[float, Field(gt=0)] | None = Field(
        None, description="S, longest update that leaves a client: L2 norm of the change of all parameters together"
    )
    noise: float = Field(0.0, ge=0, description="z, standard deviation of the noise on an update, in units of clip")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the (ε, δ) that is reported")
    withhold_rows: bool = Field(
        False,
        description="send units of linear layers back unchanged whose update would show a row, and sums of k-means "
        "over groups of rows that stay together (docs/privacy.md)",
    )
    public_mean: tuple[float, ...] = Field(
        (),
        description="under noise x is standardised by public numbers, one or one for each channel or feature; if not "
        "given 0.5 for images and 0 for vectors",
    )
    public_scale: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (), description="what x − public_mean is divided by under noise; if not given 0.25 for images and 1 for vectors"
    )

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> "Privacy":
        if self.noise and self.clip is None:
            raise ValueError("noise is in units of clip; set privacy.clip as well")
        return self


class Wire(Strict):
    """What updates weigh and how often they travel: docs/deploy.md."""

    precision: Literal["full", "half"] = Field("full", description="half: updates go up as changes in 16 bits")
    exchanges: Literal[1, 2] = Field(
        2, description="exchanges of an EM round; 1: a client uses its own fresh τ and the others' last one"
    )
    transforms: Names = Field((), description="transforms of updates that plugins offer, in order")


class Settings(Strict):
    algorithm: str = Field("fedspm", description="fedspm, one of the others of docs/algorithms, or a plugin's")
    components: int = Field(3, ge=1, description="C, components per client")
    variant: Literal["1x", "cx"] = Field("1x", description="1x: components share one encoder; cx: one encoder each")
    rounds: int = Field(200, ge=1, description="rounds to train")
    horizon: int | None = Field(None, ge=1, description="length of the annealing schedule; the rounds if not given")
    seed: int = Field(0, ge=0, description="everything random is derived from it")
    clients_per_round: int | None = Field(
        None, ge=1, description="clients drawn for every round, the others rest; all if not given"
    )
    min_count: int = Field(10, ge=1, description="no sum over fewer rows than this leaves, except τ and updates")
    predictor: Predictor = Predictor(encoder="auto", momentum=0.9, steps=10)
    router: Router = Router(encoder="auto", momentum=0.95, steps=15)
    em: EM = EM()
    robust: str = Field(
        "none",
        description="what a liar meets: none, norm, median, trimmed, krum or a plugin's rule; docs/robustness.md",
    )
    max_update: float = Field(
        20.0, gt=1, description="an update longer than this many times the median of the others' is refused"
    )
    privacy: Privacy = Privacy()
    wire: Wire = Wire()
    options: dict[str, float | int | bool | str] = Field({}, description="what only this algorithm knows; see its page")

    def alone(self) -> "Settings":
        """Without what a configuration adds: paths, data and machines are nobody else's business."""
        return Settings.model_validate({name: getattr(self, name) for name in Settings.model_fields})

    def checked_options(self, schema: type[Strict]) -> Any:
        """`options` as an algorithm's own schema has them."""
        for key in self.options:
            if key not in schema.model_fields:
                names = ", ".join(schema.model_fields) or "none"
                raise FedSPMError(f"{self.algorithm} has no option {key!r}; its options are: {names}")
        try:
            return schema.model_validate(self.options)
        except ValidationError as error:
            raise FedSPMError(f"options.{problem(error, schema)}") from error

    @property
    def encoders(self) -> tuple[str, str]:
        """What is named as the predictor's encoder and as the router's."""
        return self.predictor.encoder, self.router.encoder

    @property
    def schedule(self) -> int:
        return self.horizon or self.rounds
