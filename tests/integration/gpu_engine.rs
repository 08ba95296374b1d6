//! The engine on a GPU: checks that the tests of each vendor's device run on their stand-in.

use anyhow::{Result, ensure};
use atoll_engine::{Class, Engine, EngineConfig, EngineStatistics, FunctionKey, FunctionOptions, LaneSpec};
use atoll_pipeline::Target;
use atoll_tests::{Loaded, Model, compile_for, oracle};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time until best-effort work is preempted once.
const PREEMPTED_WITHIN: Duration = Duration::from_secs(60);

/// A GPU, and the models that it runs here.
pub(crate) struct Gpu {
    pub(crate) target: Target,
    /// Makes the model of most requests in a folder.
    pub(crate) model: fn(&Path) -> Result<Model>,
    /// Makes the model of real-time requests beside best-effort ones.
    pub(crate) urgent: fn(&Path) -> Result<Model>,
    /// Pause between real-time requests, in which best-effort ones make progress.
    pub(crate) pause: Duration,
}

fn options(name: &str, class: Class) -> FunctionOptions {
    FunctionOptions {
        key: FunctionKey::local(name),
        class,
        queue_capacity: None,
        lane: Default::default(),
        batching: None,
    }
}

impl Gpu {
    /// A model gives ONNX Runtime's results, also if its launches are evicted at random.
    pub(crate) fn models_agree_also_when_evicted(&self, engine: impl Fn(EngineConfig) -> Result<Engine>) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let model = (self.model)(folder.path())?;
        let bundle = compile_for(&model, folder.path(), self.target)?;
        let cases = oracle(&model, &[3], folder.path())?;
        for evict_at_random in [None, Some(5)] {
            let loaded =
                Loaded::start_in(engine(EngineConfig { evict_at_random, ..EngineConfig::default() })?, &bundle)?;
            let result = loaded.check(&model, &cases[0])?;
            ensure!(
                (result.preemptions > 0) == evict_at_random.is_some(),
                "under {evict_at_random:?}: {} evictions",
                result.preemptions
            );
            loaded.stop();
        }
        Ok(())
    }

    /// A function in a lane gives correct results, also while its lane is closed.
    pub(crate) fn a_busy_lane_is_closed(&self, engine: impl Fn(EngineConfig) -> Result<Engine>) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let model = (self.model)(folder.path())?;
        let bundle = compile_for(&model, folder.path(), self.target)?;
        let case = oracle(&model, &[1], folder.path())?.remove(0);
        let loaded = Loaded::start_in(engine(EngineConfig::default())?, &bundle)?;
        let handle = &loaded.handle;
        let lane = handle.open_lane(LaneSpec { units: vec![0, 1], queues: 2 })?;
        let apart = loaded.beside(&bundle, FunctionOptions { lane: lane.id, ..options("apart", Class::BestEffort) })?;
        apart.check(&model, &case)?;
        std::thread::scope(|scope| -> Result<()> {
            let requests = scope.spawn(|| (0..4).try_for_each(|_| apart.check(&model, &case).map(drop)));
            let is_busy = || {
                let lanes = handle.statistics().device.lanes;
                lanes.iter().any(|of| of.lane == lane.id && of.queue_depths.iter().any(|depth| *depth > 0))
            };
            while !is_busy() && !requests.is_finished() {
                std::thread::sleep(Duration::from_micros(100));
            }
            handle.close_lane(lane.id)?;
            requests.join().expect("no panic")
        })?;
        ensure!(handle.statistics().device.lanes.len() == 1, "the lane is still there");
        apart.check(&model, &case)?;
        apart.stop();
        loaded.stop();
        Ok(())
    }

    /// Real-time requests preempt best-effort ones, and both get correct results.
    pub(crate) fn best_effort_work_makes_way(&self, engine: impl Fn(EngineConfig) -> Result<Engine>) -> Result<()> {
        self.makes_way(engine, None).map(drop)
    }

    /// The same, until the statistics satisfy a condition; returns them. There are no more real-time
    /// requests from then on, since best-effort blocks that are killed at short intervals never end.
    pub(crate) fn makes_way(
        &self,
        engine: impl Fn(EngineConfig) -> Result<Engine>,
        until: Option<fn(&EngineStatistics) -> bool>,
    ) -> Result<EngineStatistics> {
        let folder = tempfile::tempdir()?;
        let (be_folder, rt_folder) = (folder.path().join("be"), folder.path().join("rt"));
        [&be_folder, &rt_folder].into_iter().try_for_each(std::fs::create_dir)?;
        let (be, rt) = ((self.model)(&be_folder)?, (self.urgent)(&rt_folder)?);
        let be_bundle = compile_for(&be, &be_folder, self.target)?;
        let rt_bundle = compile_for(&rt, &rt_folder, self.target)?;
        let (be_case, rt_case) = (oracle(&be, &[1], &be_folder)?.remove(0), oracle(&rt, &[1], &rt_folder)?.remove(0));
        let config = EngineConfig { policy: "reset".into(), ..EngineConfig::default() };
        let loaded = Loaded::start_in(engine(config)?, &be_bundle)?;
        let real_time = loaded.beside(&rt_bundle, options("urgent", Class::RealTime))?;
        let begun = Instant::now();
        let is_enough = || until.is_some_and(|is_enough| is_enough(&loaded.handle.statistics()));
        let preemptions = std::thread::scope(|scope| {
            let best_effort = scope.spawn(|| -> Result<u32> {
                let mut preemptions = 0;
                while (preemptions == 0 || until.is_some() && !is_enough()) && begun.elapsed() < PREEMPTED_WITHIN {
                    preemptions += loaded.check(&be, &be_case)?.preemptions;
                }
                Ok(preemptions)
            });
            while !best_effort.is_finished() {
                if begun.elapsed() < PREEMPTED_WITHIN && !is_enough() {
                    real_time.check(&rt, &rt_case)?;
                }
                std::thread::sleep(self.pause);
            }
            best_effort.join().expect("it does not panic")
        })?;
        ensure!(preemptions > 0, "nothing was preempted");
        let statistics = loaded.handle.statistics();
        loaded.stop();
        Ok(statistics)
    }
}
