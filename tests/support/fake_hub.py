"""A stand-in of the Hugging Face hub's API on the loopback: a gated model and a small data set, each one revision."""

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow
from pyarrow import parquet

MODEL, DATA = "tiny/gated", "abisee/cnn_dailymail"
APPROVED, STRANGER = "hf_" + "a" * 34, "hf_" + "s" * 34  # tokens: of an account that was approved, and one that was not
COMMIT = "0" * 40


def articles(count: int) -> bytes:
    rows = [{"article": f"Article {n}. It rains.", "highlights": "It rains.", "id": str(n)} for n in range(count)]
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


@dataclass
class Hub:
    """What it holds, by repository and path; `breaks`: how many downloads of a large file end in the middle."""

    model: Path
    breaks: int = 0
    address: str = ""
    asked: list[str] = field(default_factory=list)

    @cached_property
    def files(self) -> dict[str, dict[str, bytes]]:
        files = "  data_files:\n  - split: validation\n    path: 3.0.0/v.parquet\n"
        card = f"---\nconfigs:\n- config_name: 3.0.0\n{files}---\n"
        return {
            f"models/{MODEL}": {path.name: path.read_bytes() for path in self.model.iterdir()},
            f"datasets/{DATA}": {"README.md": card.encode(), "3.0.0/v.parquet": articles(64)},
        }


LARGE = 2**20  # bytes, from which on a file is served as one of LFS, and may break


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refused(self, repository: str) -> bool:
        """The refusals of a gated repository, as the hub words them."""
        if not repository.startswith("models/"):
            return False
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token == APPROVED:
            return False
        if token == STRANGER:
            text = f"Access to model {MODEL} is restricted and you are not in the authorized list."
            self.answer(403, text.encode(), X_Error_Code="GatedRepo", X_Error_Message=text)
        elif token:
            self.answer(
                401, b'{"error":"Invalid username or password."}', X_Error_Message="Invalid username or password."
            )
        else:
            text = (
                f"Access to model {MODEL} is restricted. You must have access to it and be authenticated to access it."
            )
            self.answer(401, text.encode(), X_Error_Code="GatedRepo", X_Error_Message=text)
        return True

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        self.hub.asked.append(f"POST {self.path}")
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "datasets"] and parts[4:5] == ["paths-info"]:
            files = self.hub.files["/".join(parts[1:4])]
            self.json([self.entry(path, files[path]) for path in wanted.get("paths", []) if path in files])
        else:
            self.answer(404, b"{}")

    def json(self, data: Any) -> None:
        self.answer(200, json.dumps(data).encode(), Content_Type="application/json")

    def entry(self, path: str, data: bytes) -> dict[str, Any]:
        known: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        return known | (
            {"lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}}
            if len(data) > LARGE
            else {}
        )

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append(f"{self.command} {self.path}")
        parts = path.strip("/").split("/")
        if parts[0] == "api" and len(parts) >= 4:
            self.about("/".join(parts[1:4]), parts[4:])
        elif "resolve" in parts:
            at = parts.index("resolve")
            kind = "" if parts[0] == "datasets" else "models/"
            self.file(kind + "/".join(parts[:at]), "/".join(parts[at + 2 :]))
        else:
            self.answer(404, b"{}")

    def about(self, repository: str, rest: list[str]) -> None:
        if (files := self.hub.files.get(repository)) is None:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")
        elif rest[:1] in ([], ["revision"]):  # which the hub tells of gated ones, too
            siblings = [{"rfilename": name} for name in files]
            gated = "manual" if repository.startswith("models/") else False
            name = repository.partition("/")[2]
            self.json({"id": name, "sha": COMMIT, "private": False, "gated": gated, "tags": [], "siblings": siblings})
        elif rest[:1] == ["tree"]:
            below = "/".join(rest[2:])
            self.json([self.entry(name, data) for name, data in files.items() if name.startswith(below)])
        else:
            self.answer(404, b"{}")

    def file(self, repository: str, path: str) -> None:
        if self.refused(repository):
            return
        data = self.hub.files.get(repository, {}).get(path)
        if data is None:
            self.answer(404, b"Entry not found", X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
            return
        tag = hashlib.sha256(data).hexdigest()
        begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        about = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        status = 206 if begin else 200
        if begin:
            about["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        if self.command == "GET" and len(data) > LARGE and self.hub.breaks:
            self.hub.breaks -= 1
            self.send_response(status)
            for name, value in {**about, "Content-Length": str(len(data) - begin)}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[begin : begin + (len(data) - begin) // 2])
            self.close_connection = True
            self.connection.close()
            return
        self.answer(status, data[begin:], **{name.replace("-", "_"): value for name, value in about.items()})


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    kind = type("OfOneHub", (Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        hub.address = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()
