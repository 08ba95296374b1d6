//! The thread that runs a [`PaddingService`].

use crate::event::Command;
use crate::padding::{PaddingJob, PaddingResult, PaddingService};
use crate::shared::Shared;
use atoll_core::memory::FunctionId;
use atoll_kgraph::{Bundle, Profile};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::sync::Arc;

/// The handle of the thread, which ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct PaddingThread(Sender<PaddingJob>);

impl PaddingThread {
    pub(crate) fn start(
        service: Arc<dyn PaddingService>,
        shared: Arc<Shared>,
        done: Sender<Command>,
    ) -> std::io::Result<PaddingThread> {
        let (jobs, inbox) = unbounded();
        std::thread::Builder::new()
            .name("atoll-padding".into())
            .spawn(move || serve(&*service, &shared, &inbox, &done))?;
        Ok(PaddingThread(jobs))
    }

    pub(crate) fn submit(&self, job: PaddingJob) {
        // If the thread has ended, the engine runs as if there were no service.
        let _ = self.0.send(job);
    }
}

fn serve(service: &dyn PaddingService, shared: &Shared, inbox: &Receiver<PaddingJob>, done: &Sender<Command>) {
    while let Ok(first) = inbox.recv() {
        let mut jobs = vec![first];
        jobs.extend(inbox.try_iter());
        for (at, job) in jobs.iter().enumerate() {
            if jobs[at + 1..].iter().any(|newer| newer.tenant == job.tenant && newer.target == job.target) {
                continue;
            }
            if done.send(Command::PaddingResult(Box::new(make(service, shared, job)))).is_err() {
                return;
            }
            shared.doorbell.ring();
        }
    }
}

fn make(service: &dyn PaddingService, shared: &Shared, job: &PaddingJob) -> PaddingResult {
    let device = shared.device.kind();
    let profiled: Vec<(FunctionId, Arc<Bundle>, Profile)> = (job.functions.iter())
        .filter_map(|(id, bundle)| {
            Some((*id, Arc::clone(bundle), service.profile(bundle, device, shared.device.compute_units)?))
        })
        .collect();
    let bundles: Vec<Arc<Bundle>> = profiled.iter().map(|(_, bundle, _)| Arc::clone(bundle)).collect();
    let modules = if bundles.is_empty() {
        Err("no function is profiled".to_owned())
    } else {
        service.compile(&job.target, &bundles)
    };
    PaddingResult {
        tenant: job.tenant.clone(),
        target: job.target.clone(),
        number: job.number,
        functions: profiled.into_iter().map(|(id, _, profile)| (id, profile)).collect(),
        modules,
    }
}
