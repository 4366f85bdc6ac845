"""References in a JSON schema: `$ref` by pointers, anchors and names, within the schema."""

import re
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from daemon.api.replies.errors import ApiError, invalid
from daemon.api.request.schema_walk import Place, Schema, parts_of

_BASE = "http://llmd.invalid/schema"
"""The base of relative names where the root has none of its own."""
_URI_LETTERS = "!#$%&'()*+,-./:;=?@_~"
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_DYNAMIC = {"$dynamicRef", "$recursiveRef"}


class References:
    """Finds the schema that a `$ref` leads to (JSON Schema 2020-12, sections 8.2 and 9)."""

    def __init__(self, root: Schema, where: str, param: str) -> None:
        """Find all schemas. `where` is the path of `root`, which is in the request's field `param`.

        Raises ApiError 400 for references that no grammar follows.
        """
        self._param = param
        self._where = where
        self._named: dict[str, Schema] = {_BASE: root}  # by URI; anchors with their fragment
        self._bases: dict[int, str] = {}  # the base of a schema's references, by its identity
        self._paths: dict[int, str] = {}  # of schemas, likewise
        self.places: list[Place] = []
        """All schemas in `root`, including those that only references lead to."""
        self._look_through(where, root, _BASE)
        for _path, schema in self.places:  # which grows
            if "$ref" in schema:
                target = self.target(schema)
                if target is not None and id(target) not in self._bases:
                    self._look_through(f"{where}: {schema['$ref']}", target, _BASE)

    def target(self, schema: Schema) -> Schema | None:
        """The target of `schema["$ref"]`; None where that is `true` or `false`.

        Raises ApiError 400 if it leads nowhere.
        """
        reference = schema["$ref"]
        if not isinstance(reference, str):
            raise self._refused(schema, "is no string")
        base = self._bases.get(id(schema), _BASE)
        try:
            whole = base + reference if reference[:1] == "#" else urljoin(base, reference)
        except ValueError:
            raise self._refused(schema, "is no address") from None
        resource, fragment = urldefrag(whole)
        found: Any = self._named.get(whole)
        if found is None:
            found = _followed(self._named.get(resource), unquote(fragment))
        if isinstance(found, dict):
            return found
        if isinstance(found, bool):
            return None
        raise self._refused(schema, "leads to nothing in this schema")

    def _look_through(self, path: str, schema: Schema, base: str) -> None:
        """Find the schemas in a schema, with their names and anchors."""
        pending = [(path, schema, base)]
        while pending:
            path, schema, base = pending.pop()
            name, anchor = schema.get("$id"), schema.get("$anchor")
            if isinstance(name, str) and not name.startswith("#"):
                base = urldefrag(urljoin(base, name))[0]
                self._named[base] = schema
            if isinstance(anchor, str):
                self._named[f"{base}#{anchor}"] = schema
            self._bases[id(schema)] = base
            self._paths.setdefault(id(schema), path)
            self._check_static(path, schema)
            self.places.append((path, schema))
            pending += [(at, part, base) for at, part in parts_of(path, schema)]

    def _check_static(self, path: str, schema: Schema) -> None:
        for key in _DYNAMIC & schema.keys():
            what = f"`{path}.{key}` is not supported; use `$ref`"
            raise invalid(what, self._param, "invalid_schema")

    def _refused(self, schema: Schema, what: str) -> ApiError:
        where = self._paths.get(id(schema), self._where)
        message = f"`{where}` has a `$ref` {str(schema['$ref'])[:100]!r} that {what}"
        return invalid(message, self._param, "invalid_schema")


def quoted(reference: Any) -> Any:
    """A `$ref` as a URI: letters beyond ASCII, and spaces, are percent-encoded."""
    return quote(reference, safe=_URI_LETTERS) if isinstance(reference, str) else reference


def _followed(found: Any, pointer: str) -> Any:
    """The target of a JSON pointer in a schema (RFC 6901); None: there is none."""
    if not pointer:
        return found
    if not pointer.startswith("/"):
        return None
    for part in pointer[1:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and _INDEX.fullmatch(key) and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
