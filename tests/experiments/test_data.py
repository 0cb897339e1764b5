import gc
import io
import sys
import tarfile
import threading
import warnings
import zipfile
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pooch
import pytest
from kann_experiments import data

from kann.errors import KannError


class Server:
    """Serves what `pages` holds: bytes, or bytes and the length that is announced for them."""

    def __init__(self):
        self.pages, self.asked = {}, []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked.append(self.path)
                if self.path not in server.pages:
                    self.send_error(404)
                    return
                content, length = server.pages[self.path]
                self.send_response(200)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def serve(self, path, content, length=None):
        """Serve this, and return the address."""
        self.pages[path] = content, length or len(content)
        return self.address + path


@pytest.fixture
def server():
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # pooch leaves the connection of a failed download open
        gc.collect()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A machine on which nothing has been downloaded."""
    monkeypatch.delenv(data.VARIABLE, raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    return tmp_path / "cache" / "kann"


@pytest.fixture
def reviews(server, monkeypatch):
    """A review archive of a few bytes, served as the official one is."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz"):
        pass
    content = buffer.getvalue()
    source = server.serve("/aclImdb_v1.tar.gz", content)
    known = replace(data.DATA_SETS["imdb"], source=source, sha256=sha256(content).hexdigest())
    monkeypatch.setitem(data.DATA_SETS, "imdb", known)
    return content


def everything_below(folder):
    """Files, and folders without any."""
    return sorted(path for path in folder.rglob("*") if path.is_file() or not any(path.iterdir()))


def test_a_download_is_kept_and_found_again(cache, server, reviews):
    assert data.find("imdb") is None
    path = data.fetch("imdb")
    assert path == cache / "imdb" / "aclImdb_v1.tar.gz"
    assert path.read_bytes() == reviews
    assert everything_below(cache) == [path]
    assert data.locate("imdb") == data.obtain("imdb") == path
    assert server.asked == ["/aclImdb_v1.tar.gz"]


def test_obtain_downloads_what_is_not_there(cache, reviews):
    assert data.obtain("imdb").read_bytes() == reviews


def refused(name="imdb"):
    """The message of a download that fails."""
    with pytest.raises(KannError) as caught:
        data.fetch(name)
    return str(caught.value)


def test_a_tampered_download(cache, server, reviews):
    server.serve("/aclImdb_v1.tar.gz", reviews + b"!")
    message = refused()
    assert "hash" in message
    assert "download http://127.0.0.1" in message
    assert everything_below(cache) == []


def test_a_tampered_download_leaves_an_earlier_one(cache, server, reviews):
    path = data.fetch("imdb")
    server.serve("/aclImdb_v1.tar.gz", b"other")
    refused()
    assert path.read_bytes() == reviews
    assert everything_below(cache) == [path]


def test_a_download_that_breaks_off(cache, server, reviews):
    server.serve("/aclImdb_v1.tar.gz", reviews, length=len(reviews) + 100)
    assert "gave no usable aclImdb_v1.tar.gz" in refused()
    assert everything_below(cache) == []


def test_a_page_that_is_gone(cache, server, reviews):
    server.pages.clear()
    assert "404" in refused()
    assert everything_below(cache) == []


def test_no_network(cache, server, reviews):
    server.http.shutdown()
    server.http.server_close()
    message = refused()
    assert "gave no usable aclImdb_v1.tar.gz" in message
    assert "set KANN_DATA_DIR=FOLDER" in message
    assert "\n" not in message
    assert everything_below(cache) == []


def test_a_zip_that_holds_something_else(cache, server, monkeypatch):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("ECG5000_TRAIN.txt", "1 2 3")
    source = server.serve("/ECG5000.zip", buffer.getvalue())
    monkeypatch.setitem(data.DATA_SETS, "ecg5000", replace(data.DATA_SETS["ecg5000"], source=source))
    message = refused("ecg5000")
    assert "ECG5000_TRAIN.txt, line 1: 2 samples" in message
    assert everything_below(cache) == []


def test_a_zip_that_is_right(cache, server, monkeypatch):
    checked = []
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w"):
        pass
    source = server.serve("/ECG5000.zip", buffer.getvalue())
    known = replace(data.DATA_SETS["ecg5000"], source=source, check=checked.append)
    monkeypatch.setitem(data.DATA_SETS, "ecg5000", known)
    path = data.fetch("ecg5000")
    assert path.read_bytes() == buffer.getvalue()
    assert len(checked) == 1
    assert everything_below(cache) == [path]


@pytest.mark.parametrize("folder", ["", "imdb"])
def test_a_folder_of_ones_own_comes_first(cache, reviews, tmp_path, monkeypatch, folder):
    data.fetch("imdb")
    own = tmp_path / "own" / folder / "aclImdb_v1.tar.gz"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"mine")
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "own"))
    assert data.locate("imdb") == own
    own.unlink()
    assert data.locate("imdb") == cache / "imdb" / "aclImdb_v1.tar.gz"


def test_beats_are_found_as_files_or_as_a_zip(cache, tmp_path, monkeypatch):
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    folder = tmp_path / "ecg5000"
    folder.mkdir()
    (folder / "ECG5000_TRAIN.ts").touch()
    assert data.find("ecg5000") is None  # half of it
    (folder / "ECG5000.zip").touch()
    assert data.find("ecg5000") == folder / "ECG5000.zip"
    (folder / "ECG5000_TEST.arff").touch()
    assert data.find("ecg5000") == folder


def test_what_is_missing_is_named_with_the_way_to_get_it(cache, tmp_path, monkeypatch):
    with pytest.raises(KannError) as caught:
        data.locate("ecg5000")
    for part in ("'kann data fetch ecg5000'", "aeon-toolkit/ECG5000.zip", "FOLDER/ecg5000/ECG5000.zip", data.VARIABLE):
        assert part in str(caught.value)
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    with pytest.raises(KannError, match="put it at") as caught:
        data.locate("imdb")
    assert str(tmp_path / "imdb" / "aclImdb_v1.tar.gz") in str(caught.value)
    assert "FOLDER" not in str(caught.value)


@pytest.mark.parametrize("function", [data.find, data.locate, data.fetch])
def test_an_unknown_data_set(function):
    with pytest.raises(KannError, match="data set 'mnist' is unknown; pass one of ecg5000, imdb"):
        function("mnist")


def test_status_lists_everything(cache, reviews):
    path = data.fetch("imdb")
    listed = {each.name: each for each in data.status()}
    assert listed.keys() == {"ecg5000", "imdb"}
    assert listed["imdb"].path == path
    assert listed["ecg5000"].path is None
    assert all(each.source.startswith("http") and each.size > 0 and each.about for each in listed.values())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not know XDG_CACHE_HOME")
def test_the_cache_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data.cache_folder() == tmp_path / "kann"


def test_a_logger_is_left_as_it_was(cache, reviews):
    before = pooch.get_logger().level
    data.fetch("imdb")
    assert pooch.get_logger().level == before


def test_without_pooch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match="pip install -e experiments"):
        data.fetch("imdb")
