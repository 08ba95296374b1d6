//! Keeps the price limit of a planned request.

use super::{Ended, Place, Run};
use crate::graphs::budget::Overrun;
use crate::graphs::stage::{Callee, StageResult};
use atoll_core::Nanos;
use atoll_core::graphs::{Cost, StageState};
use atoll_engine::InvokeError;

impl Run<'_> {
    /// Counts the price of a function that is about to run. If its reservation is lost, chooses its
    /// device within the price limit.
    ///
    /// # Errors
    /// If no device is left on which the request keeps its limit.
    pub(super) fn keep_price(&mut self, stage: usize, callee: &Callee, place: &mut Place) -> Result<(), InvokeError> {
        let (graph, works, costs) = (&self.work.graph, &self.work.works, &self.work.costs);
        let Some(budget) = &mut self.budget else { return Ok(()) };
        if place.turn.is_none() {
            let is_to_come = |other: &usize| match self.progress.state(*other) {
                StageState::Waiting | StageState::Undecided | StageState::Ready => {
                    *other != stage && !budget.is_running(*other)
                }
                StageState::Ended | StageState::Skipped => false,
            };
            let least = |other| costs.offers(other, &works[other]).iter().map(|offer| offer.price.0).min();
            let rest = (0..works.len()).filter(is_to_come).filter_map(least).fold(0, u64::saturating_add);
            let device = budget.choose(&costs.offers(stage, &works[stage]), Cost(rest)).and_then(|offer| {
                let device = costs.device_of(offer.kind, callee);
                device.ok_or(Overrun::NoDevice)
            });
            place.device = Some(device.map_err(|overrun| {
                let (graph, stage) = (graph.name(), &graph.stages()[stage].name);
                let text = format!("stage `{stage}` of graph `{graph}` cannot run on another one: {overrun}");
                InvokeError::DeviceLost(text)
            })?);
        }
        budget.begin(stage, costs.expected_price(stage, &works[stage], place.device));
        Ok(())
    }

    /// Counts the price of a stage that has ended or failed.
    pub(super) fn pay(&mut self, ended: &Ended) {
        let Some(budget) = &mut self.budget else { return };
        let (device, ns) = match &ended.result {
            Ok(StageResult { device, timing, .. }) => {
                (*device, timing.input_ns.saturating_add(timing.compute_ns).saturating_add(timing.output_ns))
            }
            Err(_) => (ended.given_to, u64::try_from(ended.took.as_nanos()).unwrap_or(u64::MAX)),
        };
        let price = self.work.costs.price_of(&self.work.works[ended.stage], device, Nanos(ns));
        budget.end(ended.stage, price, ended.result.is_err());
    }
}
