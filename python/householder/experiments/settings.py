"""What every typed setting shares."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Values read from a configuration: checked when read, unknown names refused, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
