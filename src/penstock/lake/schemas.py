"""What a message has: given in the options, registered, kept with the table, the table's own, or inferred once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from penstock.errors import ConfigError
from penstock.lake.formats import json_text
from penstock.lake.learning import inferred
from penstock.lake.options import LakeOptions
from penstock.lake.payloads import unpacked, unpacked_value
from penstock.lake.readings import reading_of, text_of_schema_file
from penstock.lake.shape import asked_for

# A table that was made from an inferred schema keeps it here, so that it is the same after every restart.
SCHEMA_PROPERTY = "penstock.schema"


def message_schema(
    options: LakeOptions,
    *,
    sample: Callable[[], DataFrame],
    table: T.StructType | None = None,
    properties: Mapping[str, str] | None = None,
) -> T.StructType:
    """The fields of a message. `sample` reads Kafka and is only called where nothing else says what they are.

    Raises ConfigError when the given schema is none, or when there is no message to infer one from.
    """
    if options.format not in ("json", "json_registry"):
        return reading_of(options, T.StructType([])).schema
    if given := given_schema(options):
        return given
    if kept := (properties or {}).get(SCHEMA_PROPERTY):
        return T.StructType.fromJson(json.loads(kept))
    if table is not None:
        ours = {name.split(".")[0].lower() for name in asked_for(options)}
        return T.StructType([field for field in table.fields if field.name.lower() not in ours])
    return _inferred(options, sample())


def properties_to_keep(options: LakeOptions, schema: T.StructType) -> dict[str, str]:
    """The properties of a new table that keep an inferred schema from being inferred again, differently."""
    is_inferred = options.format in ("json", "json_registry") and not (options.columns or options.schema_file)
    return {SCHEMA_PROPERTY: json.dumps(schema.jsonValue(), separators=(",", ":"))} if is_inferred else {}


def given_schema(options: LakeOptions) -> T.StructType | None:
    if options.columns:
        return _read(options.columns, f"lake.{options.name}.columns")
    if options.schema_file is None:
        return None
    return _read(text_of_schema_file(options), str(options.schema_file))


def _read(text: str, where: str) -> T.StructType:
    """Spark's JSON of a schema, or a column list as in CREATE TABLE."""
    try:
        schema = (
            T.StructType.fromJson(json.loads(text)) if text.lstrip().startswith("{") else T.StructType.fromDDL(text)
        )
    except (ParseException, ValueError, KeyError, TypeError) as failure:
        reason = next((line.strip() for line in str(failure).splitlines() if line.strip()), repr(failure))
        raise ConfigError(
            f"{where} is no schema: {reason}", next_step='write it as "id BIGINT NOT NULL, name STRING"'
        ) from None
    if not isinstance(schema, T.StructType) or not schema.fields:
        raise ConfigError(f"{where} has no columns", next_step='write it as "id BIGINT NOT NULL, name STRING"')
    return schema


def _inferred(options: LakeOptions, kafka: DataFrame) -> T.StructType:
    text = json_text(unpacked_value(options), framed=options.format == "json_registry")
    texts = unpacked(kafka, options).select(text.alias("text")).where("text IS NOT NULL")
    schema = inferred(texts.limit(options.infer_messages_max))
    if not schema.fields:
        raise ConfigError(
            f"lake.{options.name}: no message of {options.topic} says what columns there are",
            next_step='give columns = "id BIGINT, name STRING", or send a message first',
        )
    return schema
