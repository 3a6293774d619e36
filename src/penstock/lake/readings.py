"""Which reading a pipeline's messages need, and where its schema comes from."""

from __future__ import annotations

from pyspark.sql import types as T  # noqa: N812

from penstock.errors import ConfigError
from penstock.lake.avro import BARE, SINGLE_OBJECT, avro_of_containers, avro_of_file, avro_of_registry
from penstock.lake.formats import Bytes, Json, Reading, Text
from penstock.lake.options import LakeOptions
from penstock.lake.payloads import unpacker_of
from penstock.lake.registry import Registered, Registry


def reading_of(options: LakeOptions, schema: T.StructType) -> Reading:
    """`schema` is for JSON; the others know theirs.

    Raises ConfigError, and what the registry raises.
    """
    evolves = options.schema == "evolve"
    match options.format:
        case "json":
            return Json(schema, evolves=evolves)
        case "json_registry":
            return Json(schema, evolves=evolves, framed=True)
        case "text":
            return Text()
        case "bytes":
            return Bytes()
        case "avro":
            return avro_of_file(BARE, text_of_schema_file(options))
        case "avro_single_object":
            return avro_of_file(SINGLE_OBJECT, text_of_schema_file(options))
        case "avro_container":
            reader = Registered(text_of_schema_file(options))
            return avro_of_containers(reader, unpacker_of(options, for_schema=True))
        case "avro_registry":
            return _of_registry(options)


def _of_registry(options: LakeOptions) -> Reading:
    registry = Registry(
        options.registry,
        user=options.registry_user,
        password=options.registry_password,
        timeout=options.registry_timeout,
    )
    if options.schema_file is not None:
        return avro_of_registry(registry, Registered(text_of_schema_file(options)))
    subject = options.registry_subject or f"{options.topic.names[0]}-value"
    return avro_of_registry(registry, registry.latest(subject))


def text_of_schema_file(options: LakeOptions) -> str:
    """Raises ConfigError when it cannot be read."""
    path = options.schema_file
    assert path is not None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(f"cannot read {path}: {failure}", next_step="correct schema_file") from None
