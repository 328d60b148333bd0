"""What a job's own code leaves for its site stays, if the site wants; nothing else does."""

import os
from pathlib import Path

import pytest

from winnow.deploy.site.config import load_config
from winnow.deploy.site.job_folder import JobFolder
from winnow.deploy.site.symlink_safe_move import UntrustedFileError


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path / "job")
    folder.create()
    return folder


def test_plain_files_are_kept_and_nothing_else(job: JobFolder, tmp_path: Path) -> None:
    left, secret = job.work / "results", tmp_path / "secret"
    (left / "deeper").mkdir(parents=True)
    secret.write_text("of the site's own")
    (left / "common.txt").write_text("anna\nberta")
    (left / "link.txt").symlink_to(secret)
    (job.work / "other.txt").write_text("not left here")
    os.mkfifo(left / "pipe")
    assert job.keep_results(tmp_path / "kept" / "job-1") == 1
    assert {path.name: path.read_text() for path in (tmp_path / "kept" / "job-1").iterdir()} == {
        "common.txt": "anna\nberta"
    }


def test_a_folder_that_is_a_link_is_no_folder_of_the_jobs(job: JobFolder, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret")
    (job.work / "results").symlink_to(tmp_path / "private")
    assert job.keep_results(tmp_path / "kept") == 0
    assert not (tmp_path / "kept").exists()
    assert (tmp_path / "private" / "key").exists()


def test_a_file_that_has_another_name_elsewhere_is_not_taken(job: JobFolder, tmp_path: Path) -> None:
    (job.work / "results").mkdir()
    (tmp_path / "secret").write_text("of the site's own")
    os.link(tmp_path / "secret", job.work / "results" / "mine.txt")
    with pytest.raises(UntrustedFileError, match="not a regular file"):
        job.keep_results(tmp_path / "kept")
    assert (tmp_path / "secret").exists()


def test_a_place_that_cannot_be_written_is_told(job: JobFolder, tmp_path: Path) -> None:
    (job.work / "results").mkdir()
    (job.work / "results" / "common.txt").write_text("anna")
    (tmp_path / "kept").write_text("a file, where a folder should be")
    with pytest.raises(UntrustedFileError, match="cannot keep the job"):
        job.keep_results(tmp_path / "kept" / "job-1")


def test_without_a_setting_nothing_is_kept_and_with_one_it_is_beside_the_kit(tmp_path: Path) -> None:
    assert load_config(tmp_path).results is None
    (tmp_path / "site.toml").write_text('results = "found"\n')
    assert load_config(tmp_path).results == str(tmp_path.resolve() / "found")


def test_what_clients_keep_is_moved_under_their_numbers(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "job")
    job.create()
    (job.client_state / "abc-3.safetensors").write_bytes(b"heads")
    assert job.keep_client_state({3: "abc-3.safetensors"}, tmp_path / "kept" / "job-1") == 1
    assert (tmp_path / "kept" / "job-1" / "client-3.safetensors").read_bytes() == b"heads"
    with pytest.raises(UntrustedFileError, match="cannot keep clients' state"):
        job.keep_client_state({4: "missing.safetensors"}, tmp_path / "kept")
