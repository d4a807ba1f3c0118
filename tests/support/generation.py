"""One generation of a pipeline over a log written by hand, without capture: coordinator, lanes, queue and target."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from airflow_parallel_apply.pipeline.apply.lane import Lane
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.lease_renewer import LeaseRenewer
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
from airflow_parallel_apply.pipeline.apply.target_watch import TargetWatch
from airflow_parallel_apply.pipeline.config import Consistency, Endpoint, EpochProtocol, PipelineConfig, QueueEndpoint
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, RoutingChange
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.plan.extend import extend_plan
from airflow_parallel_apply.pipeline.run.pipeline_queue import open_pipeline_queue
from airflow_parallel_apply.queue.open import prepare_queue
from tests.support.local_stage import LocalStage


class Generation:
    """One generation of a pipeline over a written log, with as many lanes as a test likes."""

    def __init__(
        self,
        dsn: str,
        log_url: str,
        channels: int,
        *,
        limits: FeedLimits | None = None,
        queue: QueueEndpoint | None = None,
        fed: bool = True,
        consistency: Consistency = Consistency.CHANNEL,
        protocol: EpochProtocol = EpochProtocol.LEADER_MERGE,
    ) -> None:
        self.endpoint = Endpoint(conn_id="target", url=dsn)
        self.config = PipelineConfig(
            pipeline="p",
            log_url=log_url,
            channels=channels,
            epoch_max_changes=20,
            lease=timedelta(seconds=30),
            consistency=consistency,
        )
        self.limits = limits
        self.session = self.open_session()
        self.ledger, self.target = self.session.ledger, self.session.target
        self.session.migrate()
        prepare_queue(queue.dsn if queue else dsn)
        self.tasks = open_pipeline_queue(self.target, self.endpoint, queue, "p")
        self.queue = self.tasks.queue
        log = open_reader(log_url)
        owned = self.session.acquire(LeaseRequest(log_id="log", owner="test", lease=timedelta(seconds=60)))
        self.session.route(RoutingChange(generation=owned.generation, log_id="log", routing=Routing(channels=channels)))
        extend_plan(log, self.session, self.config, generation=owned.generation)
        self.names = self.tasks.names(owned.generation)
        low = low_watermark(self.target.positions())
        self.coordinator = self.make_coordinator(self.session)
        self.coordinator.seed(
            CoordinatorState(
                phase=Phase.RUNNING,
                channels=channels,
                fed_epoch=self.ledger.last_epoch_at(low),
                fed_seqno=low,
                until_seqno=log.state().last_seqno,
                consistency=consistency,
                protocol=protocol,
            ),
            capture=False,
        )
        if fed:
            self.coordinator.feed()

    def open_session(self) -> PipelineSession:
        return open_pipeline(self.endpoint, "p", log_url=self.config.log_url)

    def make_coordinator(self, session: PipelineSession) -> Coordinator:
        return self._coordinator(session, "test")

    def _coordinator(self, session: PipelineSession, claimant: str) -> Coordinator:
        def replan(until_seqno: int | None) -> None:
            extend_plan(open_reader(self.config.log_url), session, self.config, generation=self.names.generation)

        return Coordinator(self.queue, session, self.names, claimant=claimant, limits=self.limits, replan=replan)

    def lane(
        self,
        number: int = 0,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> LaneReport:
        claimant, session = f"lane {number}", self.open_session()
        report = LaneReport(lane=number, generation=self.names.generation)
        renewing = self.open_session()
        with LeaseRenewer(
            self.queue,
            claimant=claimant,
            lease=self.config.lease,
            renew_lease=lambda: renewing.ledger.renew_lease(self.names.generation, self.config.lease),
            on_lost=lambda what: None,
        ).renewing() as renewer:
            context = LaneContext(
                config=self.config,
                routing=session.ledger.routing(),
                claimant=claimant,
                coordinator=self._coordinator(session, claimant),
                session=session,
                require_pipeline=lambda: None,
                log=open_reader(self.config.log_url),
                stage=LocalStage(self.config.log_url, self.endpoint),
                renewer=renewer,
                watch=TargetWatch(session.target, renewing.target, cancelled=cancelled),
                signals=LaneSignals(stop_requested=stop_requested, cancelled=cancelled, report=lambda report: None),
                show_offset=str,
                report=report,
            )
            Lane(context, lane=number, capture=lambda: None, background_failure=lambda: None).run()
        session.close()
        renewing.close()
        return report

    def lanes(self, count: int) -> list[LaneReport]:
        with ThreadPoolExecutor(max_workers=count) as pool:
            return list(pool.map(self.lane, range(count)))

    def seqnos(self) -> list[int]:
        return [position.seqno for position in self.target.positions()]
