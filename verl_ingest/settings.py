"""What a cluster changes: read from settings.yml and the environment, checked, and passed on as one frozen object.

The environment wins over the file: VERL_INGEST_KIBANA_URL sets kibana_url, VERL_INGEST_SAMPLES__TEXT_PER_STEP sets
samples.text_per_step. The elasticsearch_* settings are also read under their usual names, such as ELASTICSEARCH_URL.
What each setting means stands in settings.yml at the root of the repository.
"""

import difflib
import os
import re
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from verl_ingest.errors import SettingsError
from verl_ingest.values import (
    AbsolutePath,
    Account,
    AnyPaths,
    Name,
    RunPaths,
    Size,
    Url,
    Zone,
    name_like,
    split,
    split_words,
)

FILE = Path("settings.yml")
ENV_PREFIX = "VERL_INGEST_"
ENV_NESTED = "__"
SECRETS = {"elasticsearch_password", "elasticsearch_api_key", "password", "token"}

# Words other tools use in the names of such settings: es_hosts is meant as elasticsearch_url.
_USUAL_WORDS = {"es": "elasticsearch", "host": "url", "hosts": "url", "uri": "url", "user": "username"}


def _elasticsearch(name: str, default: str | None = None) -> Any:
    """Let a setting of the connection also be read from the variable that other tools use for it."""
    return Field(default=default, validation_alias=AliasChoices(f"{ENV_PREFIX}{name}".lower(), name))


class Paths(BaseModel):
    """Where logs lie, by family; the agent tails each family by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: RunPaths = ("/data/runs/{run}/logs/*rank*.jsonl*",)
    file_logger: RunPaths = ("/data/runs/{run}/logs/metrics*.jsonl*",)
    console: RunPaths = ("/data/runs/{run}/logs/*.log*",)
    rollout: RunPaths = ("/data/runs/{run}/rollout/[0-9]*.jsonl", "/data/runs/{run}/val/[0-9]*.jsonl")
    ray: AnyPaths = ()


Scope = Literal["rank", "file_logger", "console", "rollout", "ray", "all"]


class Agent(BaseModel):
    """How Fluent Bit runs on a node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: AbsolutePath = "/var/lib/verl-ingest"
    buffer_limit: Size = "5G"
    username: Name | None = None
    secret_file: AbsolutePath | None = None
    poll: bool = False
    forward_listen: Name = "127.0.0.1"
    forward_port: Annotated[int, Field(ge=1, le=65535)] = 24224
    metrics_listen: Name = "127.0.0.1"
    metrics_port: Annotated[int, Field(ge=1, le=65535)] = 2020
    fluent_bit_513: bool = False


class Service(BaseModel):
    """Who may read the pages of the service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    username: Name | None = None
    password: SecretStr | None = None
    user_header: Annotated[str, name_like("X-Forwarded-User", "[A-Za-z0-9-]+")] | None = None
    proxies: Annotated[tuple[IPvAnyNetwork, ...], BeforeValidator(split_words)] = (
        IPv4Network("127.0.0.0/8"),
        IPv6Network("::1"),
    )


class Grafana(BaseModel):
    """What `apply` installs in Grafana with, and what Grafana's data sources ask."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: SecretStr | None = None
    elasticsearch_url: Url | None = None
    elasticsearch_api_key: SecretStr | None = None
    prometheus_url: Url | None = None


class Retention(BaseModel):
    """How long daily indices are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    days: PositiveInt | None = None
    samples_days: PositiveInt | None = None


class Toleration(BaseModel):
    """A taint that agents bear, as a pod of Kubernetes has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Name | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class Kubernetes(BaseModel):
    """Where in Kubernetes, and as whom."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    context: Name | None = None
    namespace: Annotated[str, name_like("verl-ingest", "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")] = "verl-ingest"
    image: Name = "fluent/fluent-bit:5.1.4"
    kit_image: Name = "verl-ingest:latest"
    user: Annotated[int, Field(ge=0)] = 1000
    group: Annotated[int, Field(ge=0)] = 1000
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = (Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"),)


class Hosts(BaseModel):
    """Which hosts, reached by ssh, and what runs there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inventory: Path | None = None
    fluent_bit: AbsolutePath = "/opt/fluent-bit/bin/fluent-bit"
    folder: AbsolutePath = "/etc/verl-ingest"
    user: Account = "verl-ingest"
    group: Account = "verl-ingest"


class Slurm(BaseModel):
    """What jobs find on the shared file system."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: AbsolutePath | None = None
    fluent_bit: AbsolutePath = "/opt/fluent-bit/bin/fluent-bit"
    agents: Literal["node", "job"] = "node"


class Deploy(BaseModel):
    """What `deploy` rolls the agents out to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Literal["kubernetes", "hosts", "slurm", "compose"] | None = None
    secret_file: Path | None = None
    canary_s: PositiveInt = 60
    kubernetes: Kubernetes = Kubernetes()
    hosts: Hosts = Hosts()
    slurm: Slurm = Slurm()


class Samples(BaseModel):
    """What is kept of rollout dumps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text_per_step: int = Field(default=32, ge=0)


# What the normaliser drops by itself; a rule of the same name would mix up the counts.
OWN_RULES = ("empty", "progress", "config_block", "validation_block", "ray_marker")


LEVELS = ("trace", "debug", "info", "warning", "warn", "error", "critical", "fatal")


def _level(value: str) -> str:
    if value.lower() not in LEVELS:
        raise ValueError(f"it should be one of {', '.join(LEVELS)}")
    return value.lower()


class DropRule(BaseModel):
    """Log lines to leave out: those that fit all that is given, but one in `keep_one_in`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    level: Annotated[Name, AfterValidator(_level)] | None = None
    logger: Name | None = None
    contains: Name | None = None
    keep_one_in: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _selects(self) -> "DropRule":
        if self.name in OWN_RULES:
            raise ValueError(f"the name {self.name} belongs to a rule of the kit; choose another")
        if not (self.level or self.logger or self.contains):
            raise ValueError(f"the rule {self.name} needs a level, a logger or a text that it contains")
        return self


class Settings(BaseSettings):
    """Every setting with its default; settings.yml says what each is for."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_NESTED,
        enable_decoding=False,  # lists are split as PATH is, see values.split
        env_ignore_empty=True,  # docker compose hands over what is not set as empty variables
    )

    elasticsearch_url: Url = _elasticsearch("elasticsearch_url", default="http://localhost:9200")
    elasticsearch_username: Name | None = _elasticsearch("elasticsearch_username")
    elasticsearch_password: SecretStr | None = _elasticsearch("elasticsearch_password")
    elasticsearch_api_key: SecretStr | None = _elasticsearch("elasticsearch_api_key")
    elasticsearch_ca_certs: Path | None = _elasticsearch("elasticsearch_ca_certs")
    expected_documents_per_day: PositiveInt = 10_000_000

    paths: Paths = Paths()
    run: Name | None = None
    node: Name | None = None
    node_scope: Annotated[tuple[Scope, ...], BeforeValidator(split)] = ()
    timezone: Zone | None = None
    samples: Samples = Samples()
    drop: tuple[DropRule, ...] = ()
    agent: Agent = Agent()
    retention: Retention = Retention()
    deploy: Deploy = Deploy()

    service_url: Url | None = None
    service: Service = Service()
    kibana_url: Url | None = None
    grafana_url: Url | None = None
    grafana: Grafana = Grafana()

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> "Settings":
        if (self.elasticsearch_username is None) != (self.elasticsearch_password is None):
            raise ValueError("elasticsearch_username and elasticsearch_password go together; set both or neither")
        if self.elasticsearch_username and self.elasticsearch_api_key:
            raise ValueError("elasticsearch_api_key and elasticsearch_username exclude each other; set one of them")
        if (self.service.username is None) != (self.service.password is None):
            raise ValueError("service.username and service.password go together; set both or neither")
        return self

    @property
    def run_paths(self) -> tuple[str, ...]:
        """Every configured path that names the run's folder."""
        families = (getattr(self.paths, family) for family in Paths.model_fields)
        return tuple(path for paths in families for path in paths if "{run}" in path)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the file, whose values `load` passes in."""
        return env_settings, init_settings


_NESTED: dict[str, type[BaseModel]] = {
    "paths": Paths,
    "samples": Samples,
    "drop": DropRule,
    "agent": Agent,
    "retention": Retention,
    "deploy": Deploy,
    "deploy.kubernetes": Kubernetes,
    "deploy.kubernetes.tolerations": Toleration,
    "deploy.hosts": Hosts,
    "deploy.slurm": Slurm,
    "service": Service,
    "grafana": Grafana,
}


# What pydantic says of these types speaks of parsing.
_EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "it should be a whole number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "it should be true or false"),
}


def load(path: Path | None = None) -> Settings:
    """Read `path`, or settings.yml of the working directory where there is one, and the environment.

    Raises SettingsError with one sentence that names the file or variable, the key, its value and what is expected.
    """
    file = path or FILE
    values = _read(file) if path or file.exists() else {}
    _check_environment()
    try:
        return Settings(**values)
    except ValidationError as error:
        raise SettingsError(_sentence(error.errors()[0], file)) from None


def _read(file: Path) -> dict[str, Any]:
    """Return the top level of a settings file; an empty file is an empty dict."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: the settings can't be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{file}{where}: not YAML: {getattr(error, 'problem', None) or error}.") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{file}: it should hold `key: value` lines, as settings.yml of the repository does.")
    return {str(key): value for key, value in values.items()}


def _check_environment() -> None:
    """Refuse a variable that looks like a setting and is none, since it would be ignored in silence."""
    known = [ENV_PREFIX + name.upper() for name in Settings.model_fields]
    for name in sorted(os.environ):
        if name.startswith(ENV_PREFIX) and name.split(ENV_NESTED)[0] not in known:
            raise SettingsError(f"environment: unknown variable {name}; {_suggestion(name, known)}")


def _sentence(error: Any, file: Path) -> str:
    """Say one of pydantic's errors in a sentence: where, which key, its value, what is expected."""
    path = [part.lower().removeprefix(ENV_PREFIX.lower()) for part in error["loc"] if isinstance(part, str)]
    said = re.sub("^(Input|String|Tuple|Value) should", "it should", error["msg"].removeprefix("Value error, "))
    message = _EXPECTED.get(error["type"], said)
    if not path:  # about more than one setting
        return f"{file} and environment: {message}."
    if error["type"] == "extra_forbidden":
        known = Settings.model_fields if len(path) == 1 else _NESTED[".".join(path[:-1])].model_fields
        return f"{file}: unknown key {'.'.join(path)}; {_suggestion(path[-1], list(known))}"
    where, name = _origin(path, file)
    value = "not shown" if SECRETS & {*path} else re.sub("//[^/]*@", "//***@", repr(error["input"]))
    if error["input"] is None:
        value = "empty"
    return f"{where}: {name} is {value}: {message}."


def _origin(path: list[str], file: Path) -> tuple[str, str]:
    """Return where the setting at `path` was read from, and the name it has there."""
    variables = [ENV_PREFIX + ENV_NESTED.join(path).upper(), ENV_PREFIX + path[0].upper()]
    if path[0].startswith("elasticsearch_"):
        variables.append(path[0].upper())
    return next((("environment", name) for name in variables if os.environ.get(name)), (str(file), ".".join(path)))


def _suggestion(unknown: str, known: list[str]) -> str:
    usual = "_".join(_USUAL_WORDS.get(word, word) for word in unknown.lower().split("_"))
    by_key = {name.lower(): name for name in known}
    for word in (unknown.lower(), usual):
        if close := difflib.get_close_matches(word, by_key, n=1):
            return f"did you mean {by_key[close[0]]}?"
    return f"known are {', '.join(known)}."
