"""The metadata that Airflow reads: it validates, and every module and class that it names is there."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.resources import files

import jsonschema
from airflow.sdk.module_loading import import_string
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from airflow_parallel_apply.get_provider_info import get_provider_info
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress


def test_the_metadata_fit_airflows_schema() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_everything_that_the_metadata_name_exists() -> None:
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers", "hooks"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                import_module(module)
    for name in info["extra-links"]:
        import_string(name)


def test_the_form_of_a_directory_of_files_offers_what_its_address_takes() -> None:
    (form,) = [
        one for one in get_provider_info()["connection-types"] if one["connection-type"] == "parallel_apply_files"
    ]
    fields = form["conn-fields"]
    for format_ in fields["format"]["schema"]["enum"]:
        options = "&".join(f"{name}={format_ if name == 'format' else 'x'}" for name in fields)
        assert FilesAddress.parse(f"files+s3://lake/shop?{options}").format == format_


def test_airflow_lists_the_provider() -> None:
    assert "airflow-provider-parallel-apply" in ProvidersManagerTaskRuntime().providers


def test_airflow_lists_our_connection_types_with_their_hooks() -> None:
    found = ProvidersManagerTaskRuntime().hooks
    for kind, hook in (
        ("parallel_apply", "airflow_parallel_apply.hooks.pipeline.PipelineHook"),
        ("parallel_apply_delta", "airflow_parallel_apply.hooks.targets.DeltaHook"),
        ("parallel_apply_files", "airflow_parallel_apply.hooks.targets.FilesHook"),
        ("parallel_apply_mariadb", "airflow_parallel_apply.hooks.targets.MariaDbHook"),
        ("parallel_apply_kafka", "airflow_parallel_apply.hooks.targets.KafkaHook"),
        ("parallel_apply_queue", "airflow_parallel_apply.hooks.queue.QueueHook"),
        ("parallel_apply_router", "airflow_parallel_apply.hooks.router.RouterHook"),
    ):
        shown = found[kind]
        assert shown is not None
        assert shown.hook_class_name == hook
        assert shown.connection_id_attribute_name == import_string(hook).conn_name_attr
