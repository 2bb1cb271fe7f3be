"""The Croissant description (JSON-LD) of a subset: its files with their SHA-256, and the columns of its rows.

Format 1.0, http://mlcommons.org/croissant/1.0. Links are relative to the run's folder.
"""

import posixpath
from collections.abc import Sequence
from typing import Any

from raycomp.data.written import ResultFile
from raycomp.schema import KEPT_SCHEMA
from raycomp.words import CAPTION, KEY, UID

TODO = "TODO by the publisher"
TABLE, ROWS = "kept.parquet", "rows"
IMAGES, CAPTIONS = "image-files", "caption-files"
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_TYPES = {"string": "sc:Text", "float": "sc:Float"}
_COLUMNS = {
    "uid": "Identifier of the row, 32 hex digits.",
    "key": "The sample's key in its shard of the input.",
    "shard": "The shard of the input, relative to its root.",
    "image_sha256": "SHA-256 of the image's bytes.",
    "caption": "The caption that was scored.",
    "alignment": "Cosine of image and caption by the scoring model.",
    "mean_pas": "Mean drop of the cosine when a nonsense word replaces a noun that an image can show.",
    "score": "The value by which the last gate ranked the row; the larger stays.",
}
_IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jfif")


def describe(
    name: str,
    description: str,
    cite_as: str,
    created: str | None,
    kept: tuple[str, ResultFile],
    shards: Sequence[tuple[str, ResultFile]],
) -> dict[str, Any]:
    """Return the description of a subset: its table ``kept``, and its ``shards``, by their relative names.

    Licence and creator are left to the publisher, as text that says so.
    """
    files = [_describe_file(TABLE, *kept, "application/x-parquet")]
    sets = [_describe_kept()]
    if shards:
        tars = [_describe_file(posixpath.basename(n), n, file, "application/x-tar") for n, file in shards]
        files += [*tars, *_describe_members([tar["@id"] for tar in tars])]
        sets += _describe_samples()
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": description,
        "license": TODO,
        "creator": {"@type": "sc:Organization", "name": TODO},
        "url": TODO,
        "version": "1.0.0",
        "citeAs": cite_as,
        **({"dateCreated": created, "datePublished": created} if created else {}),
        "distribution": files,
        "recordSet": sets,
    }


def _describe_file(identity: str, name: str, file: ResultFile, form: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": identity,
        "name": posixpath.basename(name),
        "contentUrl": name,
        "encodingFormat": form,
        "sha256": file.sha256,
    }


def _describe_kept() -> dict[str, Any]:
    fields = [
        _describe_field(
            ROWS,
            column.name,
            _COLUMNS[column.name],
            _TYPES[str(column.type)],
            {"fileObject": {"@id": TABLE}, "extract": {"column": column.name}},
        )
        for column in KEPT_SCHEMA
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": ROWS,
        "name": ROWS,
        "description": "The rows of the subset, one per image-text pair.",
        "key": {"@id": f"{ROWS}/{UID}"},
        "field": fields,
    }


def _describe_members(tars: Sequence[str]) -> list[dict[str, Any]]:
    """Return the sets of files in the shards: images, and texts."""
    within = [{"@id": tar} for tar in tars]
    sets = {IMAGES: ("image/*", [f"*.{end}" for end in _IMAGES]), CAPTIONS: ("text/plain", ["*.txt"])}
    return [
        {
            "@type": "cr:FileSet",
            "@id": name,
            "name": name,
            "containedIn": within if len(within) > 1 else within[0],
            "encodingFormat": form,
            "includes": patterns if len(patterns) > 1 else patterns[0],
        }
        for name, (form, patterns) in sets.items()
    ]


def _describe_samples() -> list[dict[str, Any]]:
    """Return the record sets of the shards' images and captions, each with the key of its sample.

    They are two, to be joined by key: mlcroissant 1.1 does not join two sets of files by parts of names.
    """
    said = "The name of the sample in its shard: the row's uid, a hyphen and a number."
    found = []
    for name, files, field, kind in (
        ("images", IMAGES, "image", "sc:ImageObject"),
        ("captions", CAPTIONS, CAPTION, "sc:Text"),
    ):
        key, content = (
            {"fileSet": {"@id": files}, "extract": {"fileProperty": one}} for one in ("filename", "content")
        )
        key["transform"] = {"regex": r"^(.+)\.\w+$"}
        fields = [
            _describe_field(name, KEY, said, "sc:Text", key),
            _describe_field(name, field, f"The {field} of the sample.", kind, content),
        ]
        found.append(
            {
                "@type": "cr:RecordSet",
                "@id": name,
                "name": name,
                "description": f"The {name} of the shards.",
                "key": {"@id": f"{name}/{KEY}"},
                "field": fields,
            }
        )
    return found


def _describe_field(within: str, name: str, said: str, kind: str, source: dict[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{within}/{name}",
        "name": name,
        "description": said,
        "dataType": kind,
        "source": source,
    }
