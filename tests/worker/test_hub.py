import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbyte_worker import hub as hub_module
from halfbyte_worker.download import Download
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.hub import Hub, HubFile, Patience, listed_files
from support.hub import FakeHub, Fault, Repo

REPO, TOKEN = "owner/name", "hf_secretsecretsecret"
CONTENT = bytes(range(256)) * 4096
FILES = {"config.json": b"{}", "model.safetensors": CONTENT}
IMPATIENT = Patience(
    stall_seconds=0.4, stall_bytes=4096, attempts=3, backoff_seconds=0.005, longest_wait=0.05
)


@pytest.fixture
def server() -> Iterator[FakeHub]:
    with FakeHub({REPO: Repo.of(FILES)}) as found:
        yield found


def client(server: FakeHub, repo: str = REPO, token: str | None = None) -> Hub:
    return Hub(repo, server.endpoint, token, IMPATIENT)


def failure_of(call) -> Failure:
    with pytest.raises(Failure) as caught:
        call()
    assert TOKEN not in caught.value.message
    return caught.value


def fetch(server: FakeHub, folder: Path, name: str = "model.safetensors", token: str | None = None) -> bytes:
    hub = client(server, token=token)
    commit, files = hub.pin("main")
    Download(hub, commit, files[name], folder).run()
    return (folder / name).read_bytes()


# Revisions and listings


def test_a_branch_is_pinned_to_its_commit_with_sizes_and_digests(server: FakeHub) -> None:
    commit, files = client(server).pin("main")
    assert commit == server.repos[REPO].refs["main"]
    assert files["model.safetensors"] == HubFile(
        "model.safetensors", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), None
    )
    assert files["config.json"].blob == hashlib.sha1(b"blob 2\0{}", usedforsecurity=False).hexdigest()


def test_a_branch_may_move_but_a_commit_stays(server: FakeHub) -> None:
    first, _ = client(server).pin("main")
    second = server.repos[REPO].commit({"config.json": b'{"new": 1}'})
    assert client(server).pin("main")[0] == second
    assert client(server).pin(first)[0] == first
    assert client(server).read(first, "config.json", 0, 100) == (b"{}", 2)


def test_a_branch_with_a_slash_is_one_word_of_the_path(server: FakeHub) -> None:
    server.repos[REPO].refs["refs/pr/1"] = commit = server.repos[REPO].refs["main"]
    assert client(server).pin("refs/pr/1")[0] == commit
    assert server.paths("refs%2Fpr%2F1")


@pytest.mark.parametrize("codes", [True, False])
def test_refusals_have_their_reasons_with_and_without_the_hubs_own_codes(
    server: FakeHub, codes: bool
) -> None:
    server.error_codes = codes
    unknown = failure_of(lambda: client(server, "owner/other", TOKEN).pin("main"))
    assert (unknown.reason, unknown.code) == (Reason.SOURCE_NOT_FOUND, 20)
    assert "owner/other" in unknown.message
    revision = failure_of(lambda: client(server).pin("v9"))
    assert (revision.reason, revision.code) == (Reason.REVISION_NOT_FOUND, 20)
    assert "no revision v9" in revision.message
    server.repos[REPO].token = "hf_other"
    commit = server.repos[REPO].refs["main"]
    anonymous = failure_of(lambda: client(server).read(commit, "config.json", 0, 9))
    assert (anonymous.reason, anonymous.code) == (Reason.GATED_REPOSITORY, 20)
    assert "tokenSecretRef" in anonymous.message
    assert "status 401" in anonymous.message
    wrong = failure_of(lambda: client(server, token=TOKEN).read(commit, "config.json", 0, 9))
    assert wrong.reason == Reason.GATED_REPOSITORY
    assert "status 403; the token" in wrong.message


def test_an_unknown_repository_without_a_token_may_be_a_private_one(server: FakeHub) -> None:
    message = failure_of(lambda: client(server, "owner/other").pin("main")).message
    assert "does not exist, or is private" in message


def test_a_private_repository_opens_with_its_token(server: FakeHub) -> None:
    server.repos[REPO].token, server.repos[REPO].private = TOKEN, True
    assert failure_of(lambda: client(server).pin("main")).reason == Reason.SOURCE_NOT_FOUND
    assert client(server, token=TOKEN).pin("main")[0]


def test_a_server_that_is_no_hub_is_named(server: FakeHub) -> None:
    server.faults = [Fault("/api/models", status=200)]
    found = failure_of(lambda: client(server).pin("main"))
    assert found.reason == Reason.SOURCE_UNREACHABLE
    assert "is it a Hugging Face hub?" in found.message


def test_an_answer_without_a_commit_is_refused(server: FakeHub) -> None:
    server.repos[REPO].refs["main"] = "not-a-commit"
    server.repos[REPO].commits["not-a-commit"] = {}
    assert "names no commit" in failure_of(lambda: client(server).pin("main")).message


def test_a_commit_that_is_answered_with_another_is_refused(server: FakeHub) -> None:
    asked = "0" * 40
    server.repos[REPO].refs[asked] = server.repos[REPO].refs["main"]
    server.repos[REPO].resolve = lambda revision: server.repos[REPO].refs["main"]  # type: ignore[method-assign]
    assert failure_of(lambda: client(server).pin(asked)).reason == Reason.REVISION_NOT_FOUND


def test_only_safe_names_of_the_top_folder_are_listed() -> None:
    names = [
        "config.json",
        "../evil",
        "/etc/passwd",
        "a/b.json",
        ".hidden",
        "x\\y",
        "a b",
        "",
        "nul\0",
        "..",
        7,
    ]
    entries = [{"rfilename": name, "size": 1} for name in names]
    assert [file.name for file in listed_files([*entries, "text", None])] == ["config.json"]
    assert list(listed_files("no list")) == []


def test_digests_and_sizes_of_a_strange_listing_are_left_out() -> None:
    entry = {"rfilename": "a", "size": "9", "blobId": "x", "lfs": {"sha256": "y", "size": -1}}
    assert list(listed_files([entry])) == [HubFile("a", None, None, None)]


# Ranges


def test_ranges(server: FakeHub) -> None:
    hub = client(server)
    commit, _ = hub.pin("main")
    assert hub.read(commit, "model.safetensors", 10, 5) == (CONTENT[10:15], len(CONTENT))
    assert hub.read(commit, "model.safetensors", len(CONTENT) - 3, 50)[0] == CONTENT[-3:]
    assert hub.read(commit, "model.safetensors", len(CONTENT) + 1, 5) == (b"", len(CONTENT))


def test_a_server_without_ranges_serves_too(server: FakeHub) -> None:
    server.faults = [Fault("resolve", whole=True)]
    hub = client(server)
    commit, _ = hub.pin("main")
    assert hub.read(commit, "model.safetensors", 100_000, 5) == (CONTENT[100_000:100_005], len(CONTENT))


def test_a_file_that_the_listing_has_and_the_hub_has_not(server: FakeHub) -> None:
    server.faults = [Fault("resolve", status=404)]
    found = failure_of(lambda: client(server).read("0" * 40, "config.json", 0, 1))
    assert found.reason == Reason.SOURCE_INCOMPLETE
    assert "config.json" in found.message


# Trouble that passes and trouble that does not


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_statuses_are_retried(server: FakeHub, status: int, tmp_path: Path) -> None:
    server.faults = [Fault("/api/", times=2, status=status), Fault("resolve", times=2, status=status)]
    assert fetch(server, tmp_path) == CONTENT


def test_a_status_that_stays_ends_after_all_attempts(server: FakeHub) -> None:
    server.faults = [Fault("/api/", status=503)]
    found = failure_of(lambda: client(server).pin("main"))
    assert (found.reason, found.code) == (Reason.SOURCE_UNREACHABLE, 10)
    assert "status 503, in 3 attempts" in found.message
    assert len(server.requests) == IMPATIENT.attempts


def test_a_status_that_retries_cannot_cure_is_told_at_once(server: FakeHub) -> None:
    server.faults = [Fault("/api/", status=418)]
    assert "418" in failure_of(lambda: client(server).pin("main")).message
    assert len(server.requests) == 1


def test_retry_after_is_honoured_within_bounds(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(hub_module.time, "sleep", slept.append)
    server.faults = [Fault("/api/", times=1, status=429, headers={"Retry-After": "7"})]
    Hub(REPO, server.endpoint, None, Patience(backoff_seconds=0.001, longest_wait=60)).pin("main")
    server.faults = [Fault("/api/", times=1, status=429, headers={"Retry-After": "86400"})]
    Hub(REPO, server.endpoint, None, Patience(backoff_seconds=0.001, longest_wait=60)).pin("main")
    server.faults = [
        Fault("/api/", times=1, status=429, headers={"Retry-After": "Mon, 30 Nov 2026 00:00:00 GMT"})
    ]
    Hub(REPO, server.endpoint, None, Patience(backoff_seconds=0.001, longest_wait=60)).pin("main")
    assert slept[:2] == [7.0, 60.0]
    assert slept[2] < 1


def test_waits_grow_with_jitter_up_to_a_bound() -> None:
    patience = Patience(backoff_seconds=1, longest_wait=20)
    waits = [[patience.wait(failures, None) for _ in range(50)] for failures in range(1, 9)]
    for number, found in enumerate(waits):
        assert len(set(found)) > 1 or min(found) == 20
        assert 0.5 * 2**number <= min(found) or min(found) == 20 or max(found) == 20
        assert max(found) <= min(20, 1.5 * 2**number)


def test_patience_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFBYTE_HUB_STALL_SECONDS", "0.5")
    monkeypatch.setenv("HALFBYTE_HUB_ATTEMPTS", "2")
    monkeypatch.setenv("HALFBYTE_HUB_BACKOFF_SECONDS", "0.25")
    found = Patience.from_environment()
    assert (found.stall_seconds, found.attempts, found.backoff_seconds) == (0.5, 2, 0.25)


def test_a_hub_that_is_not_there() -> None:
    with FakeHub() as closed:
        endpoint = closed.endpoint
    found = failure_of(lambda: Hub(REPO, endpoint, None, IMPATIENT).pin("main"))
    assert (found.reason, found.code) == (Reason.SOURCE_UNREACHABLE, 10)
    assert endpoint.removeprefix("http://") in found.message


def test_silence_is_a_stall(server: FakeHub) -> None:
    server.faults = [Fault("/api/", hang=True)]
    found = failure_of(lambda: client(server).pin("main"))
    assert (found.reason, found.code) == (Reason.SOURCE_STALLED, 10)
    assert "0.4 s" in found.message


def test_a_trickle_is_a_stall_though_every_read_succeeds(server: FakeHub, tmp_path: Path) -> None:
    server.faults = [Fault("resolve", rate=4000)]
    hub = Hub(REPO, server.endpoint, None, Patience(0.4, 1 << 20, 1, 0.001, 0.01))
    commit, files = hub.pin("main")
    found = failure_of(Download(hub, commit, files["model.safetensors"], tmp_path).run)
    assert found.reason == Reason.SOURCE_STALLED
    assert 0 < (tmp_path / "model.safetensors.part").stat().st_size < len(CONTENT)


def test_a_slow_download_that_moves_is_no_stall(server: FakeHub, tmp_path: Path) -> None:
    server.faults = [Fault("resolve", rate=2e6)]
    assert fetch(server, tmp_path) == CONTENT


# Downloads


def test_a_download_is_there_whole_and_alone(server: FakeHub, tmp_path: Path) -> None:
    assert fetch(server, tmp_path) == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_an_empty_file(server: FakeHub, tmp_path: Path) -> None:
    server.repos[REPO].commit({"merges.txt": b""})
    assert fetch(server, tmp_path, "merges.txt") == b""


def test_a_cut_connection_goes_on_where_it_stopped(server: FakeHub, tmp_path: Path) -> None:
    server.faults = [Fault("resolve", times=5, after=150_000)]
    assert fetch(server, tmp_path) == CONTENT
    ranges = [headers.get("Range") for path, headers in server.requests if "resolve" in path]
    # More cuts than attempts: each moved bytes, so none counts as one in vain.
    assert ranges == [None, *(f"bytes={n * 150_000}-" for n in range(1, 6))]
    assert all("If-Range" in headers for path, headers in server.requests[2:])


def test_a_stall_in_the_middle_goes_on_where_it_stopped(server: FakeHub, tmp_path: Path) -> None:
    server.faults = [Fault("resolve", times=1, after=500_000, hang=True)]
    assert fetch(server, tmp_path) == CONTENT
    assert server.requests[-1][1]["Range"] == "bytes=500000-"


def test_cuts_without_progress_end(server: FakeHub, tmp_path: Path) -> None:
    server.faults = [Fault("resolve", after=0)]
    found = failure_of(lambda: fetch(server, tmp_path))
    assert (found.reason, found.code) == (Reason.SOURCE_UNREACHABLE, 10)


def test_a_part_of_an_earlier_run_is_continued(server: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(CONTENT[:777])
    assert fetch(server, tmp_path) == CONTENT
    assert server.requests[-1][1]["Range"] == "bytes=777-"


def test_a_part_that_is_whole_needs_no_request(server: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path) == CONTENT
    assert server.paths("resolve") == []


def test_a_part_of_another_version_is_noticed_by_its_etag(server: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(b"x" * 1000)
    (tmp_path / "model.safetensors.part.etag").write_text('"other"')
    assert fetch(server, tmp_path) == CONTENT
    assert server.requests[-1][1]["If-Range"] == '"other"'
    assert len(server.paths("resolve")) == 1


@pytest.mark.parametrize("size", [1000, len(CONTENT), len(CONTENT) + 5])
def test_a_damaged_part_is_downloaded_once_more(server: FakeHub, tmp_path: Path, size: int) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(b"x" * size)
    assert fetch(server, tmp_path) == CONTENT


def test_a_file_without_digest_is_never_continued_on_trust(server: FakeHub, tmp_path: Path) -> None:
    server.repos[REPO].sizes = False
    (tmp_path / "model.safetensors.part").write_bytes(b"x" * 1000)
    assert fetch(server, tmp_path) == CONTENT
    assert "Range" not in server.requests[-1][1]


def test_a_weak_etag_does_not_vouch_for_bytes(server: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(CONTENT[:500])
    (tmp_path / "model.safetensors.part.etag").write_text('W/"weak"')
    assert fetch(server, tmp_path) == CONTENT
    assert "If-Range" not in server.requests[-1][1]


def test_content_of_a_wrong_size_or_digest_is_refused_and_removed(server: FakeHub, tmp_path: Path) -> None:
    for wrong in (CONTENT[:-5], CONTENT + b"12345", b"x" + CONTENT[1:]):
        server.faults = [Fault("model.safetensors", content=wrong)]
        found = failure_of(lambda: fetch(server, tmp_path))
        assert (found.reason, found.code) == (Reason.SOURCE_INCOMPLETE, 20)
        assert "model.safetensors of owner/name" in found.message
        assert list(tmp_path.iterdir()) == []
    server.faults = [Fault("config.json", content=b"[]")]
    assert "digest" in failure_of(lambda: fetch(server, tmp_path, "config.json")).message


def test_content_that_is_wrong_once_is_downloaded_again(server: FakeHub, tmp_path: Path) -> None:
    server.faults = [Fault("resolve", times=1, content=b"x" + CONTENT[1:])]
    assert fetch(server, tmp_path) == CONTENT


def test_a_server_that_refuses_to_resume_is_asked_for_the_whole(server: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(CONTENT[:500])
    server.faults = [Fault("resolve", times=1, status=416)]
    assert fetch(server, tmp_path) == CONTENT


def test_progress_is_told_in_bytes_of_the_file(server: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(CONTENT[:500])
    hub, told = client(server), []
    commit, files = hub.pin("main")
    Download(hub, commit, files["model.safetensors"], tmp_path, told.append).run()
    assert told == sorted(told)
    assert told[0] > 500
    assert told[-1] == len(CONTENT)


# The token


@pytest.mark.parametrize("text", [f"{TOKEN}\n", f"  {TOKEN} \r\n"])
def test_a_token_from_a_file_with_a_last_line_break(server: FakeHub, text: str) -> None:
    client(server, token=text).pin("main")
    assert server.requests[0][1]["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("text", [f"{TOKEN}\nsecond", f"two {TOKEN}", f"{TOKEN}ä"])
def test_a_token_that_is_none_is_refused_without_quoting_it(server: FakeHub, text: str) -> None:
    found = failure_of(lambda: client(server, token=text))
    assert found.reason == Reason.GATED_REPOSITORY
    assert "correct the Secret" in found.message


def test_the_token_goes_to_the_endpoint_and_to_no_other_host(server: FakeHub, tmp_path: Path) -> None:
    server.repos[REPO].token = TOKEN
    with FakeHub({REPO: Repo.of(FILES)}) as elsewhere:
        server.elsewhere = elsewhere.endpoint
        assert fetch(server, tmp_path, token=TOKEN) == CONTENT
        assert len(elsewhere.requests) == 1
        assert "Authorization" not in elsewhere.requests[0][1]
        assert TOKEN not in json.dumps(elsewhere.requests)
    assert all(headers["Authorization"] == f"Bearer {TOKEN}" for _, headers in server.requests)
    assert TOKEN not in "".join(path for path, _ in server.requests)


def test_a_redirected_download_resumes_too(server: FakeHub, tmp_path: Path) -> None:
    with FakeHub({REPO: Repo.of(FILES)}) as elsewhere:
        server.elsewhere = elsewhere.endpoint
        elsewhere.faults = [Fault("resolve", times=2, after=100_000)]
        assert fetch(server, tmp_path) == CONTENT
        assert elsewhere.requests[-1][1]["Range"] == "bytes=200000-"


def test_a_circle_of_redirects_ends(server: FakeHub) -> None:
    server.elsewhere = server.endpoint
    found = failure_of(lambda: client(server).read(client(server).pin("main")[0], "config.json", 0, 1))
    assert found.reason == Reason.SOURCE_UNREACHABLE
    assert "nowhere" in found.message


def test_a_redirect_to_something_that_is_no_address(server: FakeHub) -> None:
    server.elsewhere = "ftp://files.example"
    found = failure_of(lambda: client(server).read(client(server).pin("main")[0], "config.json", 0, 1))
    assert found.reason == Reason.SOURCE_UNREACHABLE


@pytest.mark.parametrize("status", [401, 403, 404, 418, 503])
def test_a_server_that_repeats_the_token_is_not_quoted(server: FakeHub, status: int, capsys) -> None:
    server.faults = [Fault("/api/", status=status, echo=True)]
    failure_of(lambda: client(server, token=TOKEN).pin("main"))
    assert TOKEN not in capsys.readouterr().out


def test_many_threads_are_served_by_the_fake(server: FakeHub) -> None:
    """The fake itself: faults and requests of parallel clients do not mix."""
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(client(server).pin("main")[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == len(server.paths("revision/main")) == 8
