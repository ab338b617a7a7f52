"""A mypy plugin: `model.evolve(...)` takes the fields of its own model, with their types.

The signature is the one that pydantic's plugin gives to `model_construct`, with every field
optional. If the model is not known (a bound type variable), mypy accepts no field at all.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import ARG_NAMED, ARG_NAMED_OPT
from mypy.plugin import MethodSigContext, Plugin
from mypy.types import FunctionLike, Instance, get_proper_type

MODEL = "cpr_operator.api.base.Model"


class EvolvePlugin(Plugin):
    """Handles the one method with a signature that depends on the model of the call."""

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        """The hook for `evolve`."""
        return with_own_fields if fullname.endswith(".evolve") else None


def with_own_fields(ctx: MethodSigContext) -> FunctionLike:
    """The signature of `evolve` on this model: its fields, each of them optional."""
    if not isinstance(ctx.type, Instance) or not ctx.type.type.has_base(MODEL):
        return ctx.default_signature
    construct = ctx.type.type.get_method("model_construct")
    made = get_proper_type(construct.type) if construct is not None else None
    if not isinstance(made, FunctionLike):
        return ctx.default_signature
    (made,) = made.items
    fields = [
        (name, typ)
        for name, kind, typ in zip(made.arg_names, made.arg_kinds, made.arg_types, strict=True)
        if kind in {ARG_NAMED, ARG_NAMED_OPT}
    ]
    return ctx.default_signature.copy_modified(
        arg_names=[name for name, _ in fields],
        arg_kinds=[ARG_NAMED_OPT] * len(fields),
        arg_types=[typ for _, typ in fields],
    )


def plugin(_version: str) -> type[Plugin]:
    """The entry point for mypy."""
    return EvolvePlugin
