"""Other tuners of the installed peft, by ``peft_type``, with the fields of its configuration class."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError, field_validator, model_validator

from hftune.errors import HftuneError, closest
from hftune.methods.method import ARCHITECTURES, AdapterMethod
from hftune.models.adapter_limits import TYPES, config_faults
from hftune.models.settings import encoder_config

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedConfig, PreTrainedModel

REFUSED = {
    "ADALORA": "it prunes its ranks in every training step, by statistics that no checkpoint has",
    "ADAPTION_PROMPT": "peft has it for LLaMA and Mistral only",
    "CARTRIDGE": "it is made from the key-value cache of a long document, not trained on examples",
    "CPT": "it needs the token ids of a prompt for a causal language model",
    "MULTITASK_PROMPT_TUNING": "it needs a task id with every example",
    "POLY": "it needs a task id with every example",
    "PREFIX_TUNING": "use --method prefix",
    "PROMPT_TUNING": "use --method prompt",
    "P_TUNING": "use --method ptuning",
    "SHADOW": "it replaces the layers of a decoder by a second network, and encoders have no such layers",
    "TRAINABLE_TOKENS": "its configuration has no modules_to_save, so that the head would be neither trained nor saved",
    "XLORA": "it mixes adapters that are trained already",
}
"""Types that can't be trained here, and why."""
CONTROLLED = {
    "modules_to_save": "hftune trains and saves the head and every module that the checkpoint lacks",
    "fan_in_fan_out": "hftune reads it from the model",
    "inference_mode": "hftune sets it",
    "task_type": "the task decides it",
    "base_model_name_or_path": "it is model.model_name_or_path",
    "revision": "it is model.model_revision",
    "use_asa": "it needs a call in every training step",
    "layer_replication": "the base that is saved would have other layers than the checkpoint",
    "auto_mapping": "peft writes it",
    "peft_version": "peft writes it",
}
"""Fields of every configuration that are not settings, and why."""
INIT, INITS = "init_lora_weights", (True, False, "gaussian", "orthogonal")
"""The initializations of LoRA that leave the base as it is and need no data."""
NORMS = "LN_TUNING"
"""Trains norms; the targets of the others are linear layers."""


class PeftMethod(AdapterMethod):
    """Another tuner of the installed peft, and the head (set `method.peft_type` and the fields of its PeftConfig)."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["peft"] = "peft"
    peft_type: str = "VERA"
    """Name of the tuner, as in VERA; the other settings are the fields of its configuration class."""
    target_modules: tuple[str, ...] | None = None
    """Suffixes of the modules to adapt; query and value of the attention by default, the norms for LN_TUNING."""
    pretrained_learning_rate: ClassVar[float] = 1e-3
    scratch_learning_rate: ClassVar[float] = 2e-3

    @field_validator("peft_type")
    @classmethod
    def _known_type(cls, value: str) -> str:
        if value in REFUSED:
            raise ValueError(f"{value} can't be trained: {REFUSED[value]}")
        known = trainable_types()
        if value not in known:
            near = closest(value, known)
            raise ValueError(
                f"expected a type of the installed peft (did you mean {near}?)"
                if near
                else f"expected a type of the installed peft: {', '.join(known)}"
            )
        return value

    @classmethod
    def undeclared(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """What is wrong with fields of the configuration class: key, message and hint."""
        kind = given.get("peft_type", cls.model_fields["peft_type"].default)
        known = config_fields(kind) if kind in trainable_types() else {}
        for key, value in given.items() if known else ():
            if key in CONTROLLED:
                yield key, f"can't be set: {CONTROLLED[key]}", "leave it out"
            elif key == INIT and value not in INITS:
                yield key, f"expected one of {INITS}; got {value!r}", "Others need data, or change the base's weights."
            elif key in cls.model_fields:
                continue
            elif key not in known:
                near, own = closest(key, known), ", ".join(name for name in known if name not in CONTROLLED)
                hint = f"Did you mean method.{near}?" if near else f"It has {own}."
                yield key, f"no field of the configuration of {kind}", hint
            elif not _fits(value, known[key]):
                yield key, f"expected {_shown(known[key])}; got {value!r}", f"It is a field of peft's {kind}."

    @model_validator(mode="before")
    @classmethod
    def _check_undeclared(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            problems = [f"{key}: {message}. {hint}" for key, message, hint in cls.undeclared(given)]
            if problems:
                raise ValueError("; ".join(problems))
        return given

    def _passed_on(self) -> tuple[str, ...]:
        return tuple(config_fields(self.peft_type))

    @property
    def linear_targets(self) -> bool:
        """Norms are adapted by one type, linear layers by the others."""
        return self.peft_type != NORMS

    def check(self, config: PreTrainedConfig) -> None:
        """Refuse settings that peft's configuration class refuses, and a saved adapter that could not be loaded."""
        # Any target passes here: names of layers are compared with the model when the method is applied.
        made = self.make_config(target_modules=[*(self.target_modules or ("query",))]).to_dict()
        saved = {name: sorted(value) if isinstance(value, set) else value for name, value in made.items()}
        for field, value, reason, _ in config_faults(saved):
            raise HftuneError(f"method.{field} is {value!r}: {reason}", hint="leave it out, or choose another value")

    def settings(self, model: PreTrainedModel) -> dict[str, Any]:
        """The modules to adapt."""
        if self.target_modules:
            return {"target_modules": list(self.target_modules)}
        if self.peft_type == NORMS:
            from hftune.methods.applied import norm_names

            return {"target_modules": list(norm_names(model))}
        # check has refused an unknown one without target_modules
        known = ARCHITECTURES[encoder_config(model.config).model_type]
        if self.peft_type == "IA3":
            targets = [*known.ia3, *known.ia3_feedforward]
            return {"target_modules": targets, "feedforward_modules": [*known.ia3_feedforward]}
        return {"target_modules": list(known.lora)}

    def make_config(self, **settings: Any) -> PeftConfig:
        """Peft's configuration, with the fields that the recipe sets."""
        from peft import PEFT_TYPE_TO_CONFIG_MAPPING

        try:
            return PEFT_TYPE_TO_CONFIG_MAPPING[self.peft_type](**{**settings, **(self.model_extra or {})})
        except (ValueError, TypeError) as error:
            raise HftuneError(
                f"peft refuses these settings of {self.peft_type}: {error}", hint="correct them in the method section"
            ) from error


def trainable_types() -> tuple[str, ...]:
    """The types of the installed peft that can be trained here."""
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING

    return tuple(kind for kind in TYPES if kind in PEFT_TYPE_TO_CONFIG_MAPPING and kind not in REFUSED)


@functools.cache
def config_fields(peft_type: str) -> Mapping[str, Any]:
    """Names and types of the arguments of a type's configuration class."""
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING

    made = PEFT_TYPE_TO_CONFIG_MAPPING[peft_type]
    types = get_type_hints(made)
    return {field.name: types[field.name] for field in fields(made) if field.init}


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value from a recipe is one of the annotated type."""
    if is_dataclass(annotation):
        return False  # an object of peft, which a recipe can't hold
    adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
    for one in (value, tuple(value)) if isinstance(value, list) else (value,):  # a tuple is a list in YAML
        try:
            adapter.validate_python(one)
        except ValidationError:
            continue
        return True
    return False
