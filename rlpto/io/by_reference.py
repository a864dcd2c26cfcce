"""Named tuples of many arrays that compiled code gets by reference.

numba passes a named tuple by all its parts and copies them at each use. A function with a simulated world as argument
had some 150 arguments, which took most of the compiler's time. By reference it has one.
"""

from __future__ import annotations

from typing import Any, TypeVar

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

Class = TypeVar("Class", bound=type[Any])

SLOT = ir.IntType(64)
"""Memory of each number and each pointer of a tuple."""


class Reference(types.Type):
    """Numba's type of a named tuple whose type by value is `parts`."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts
        super().__init__(name=f"Reference({parts.name})")


def by_reference(cls: Class) -> Class:
    """Decorator: compiled code gets instances of this class of named tuples by reference, and cannot make any."""

    @typeof_impl.register(cls)
    def _typeof(value: Any, context: Any) -> Reference:
        return Reference(types.BaseTuple.from_types([typeof_impl(part, context) for part in value], cls))

    return cls


@register_model(Reference)
class _Model(models.PrimitiveModel):
    """A pointer to slots."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, SLOT.as_pointer())


@infer_getattr
class _Attributes(AttributeTemplate):
    key = Reference

    def generic_resolve(self, kind: Reference, name: str) -> Any:  # type: ignore[override]
        """Type of a part."""
        return dict(zip(kind.parts.fields, kind.parts.types, strict=True)).get(name)


@unbox(Reference)
def _unbox(kind: Reference, value: Any, c: Any) -> NativeValue:
    """Put the parts into memory of the function that Python calls, which releases them at its end."""
    native = c.unbox(kind.parts, value)
    memory = alloca_once(c.builder, SLOT, size=ir.Constant(SLOT, _slots(native.value.type)))
    _store(c.builder, memory, 0, native.value)

    def release() -> None:
        if native.cleanup is not None:
            native.cleanup()
        if c.context.enable_nrt:  # numba releases an argument by its type, and a pointer has nothing to release
            c.context.nrt.decref(c.builder, kind.parts, native.value)

    return NativeValue(memory, cleanup=release, is_error=native.is_error)


@lower_getattr_generic(Reference)
def _lower_part(context: Any, builder: Any, kind: Reference, memory: Any, name: str) -> Any:
    """Load a part."""
    index, parts = kind.parts.fields.index(name), context.get_value_type(kind.parts).elements
    value = _load(builder, memory, sum(map(_slots, parts[:index])), parts[index])
    return impl_ret_borrowed(context, builder, kind.parts.types[index], value)


def _slots(kind: Any) -> int:
    return sum(map(_slots, kind.elements)) if isinstance(kind, ir.Aggregate) else 1


def _place(builder: Any, memory: Any, at: int, kind: Any) -> Any:
    return builder.bitcast(builder.gep(memory, [ir.Constant(SLOT, at)]), kind.as_pointer())


def _store(builder: Any, memory: Any, at: int, value: Any) -> None:
    if not isinstance(value.type, ir.Aggregate):
        builder.store(value, _place(builder, memory, at, value.type))
        return
    for i, kind in enumerate(value.type.elements):
        _store(builder, memory, at, builder.extract_value(value, i))
        at += _slots(kind)


def _load(builder: Any, memory: Any, at: int, kind: Any) -> Any:
    if not isinstance(kind, ir.Aggregate):
        value = builder.load(_place(builder, memory, at, kind))
        value.set_metadata("invariant.load", builder.module.add_metadata([]))  # a loop need not load it again
        return value
    value = ir.Constant(kind, ir.Undefined)
    for i, part in enumerate(kind.elements):
        value = builder.insert_value(value, _load(builder, memory, at, part), i)
        at += _slots(part)
    return value
