//! Predicts the load of a function: an exponentially weighted mean and a season.
//!
//! FaST-GShare scales to a "predicted load" that it does not specify. Here the prediction for the
//! next interval is `level + season[slot]`. Each observed rate moves the level by [`LEVEL_PERCENT`]
//! of its difference from the prediction, and the season's slot of that interval by
//! [`SEASON_PERCENT`] of the remaining difference. A season is, for example, a day in slots of ten
//! minutes. Without a season the prediction is the mean. Rates are in thousandths of a request per
//! second.

/// The part of a difference by which the level moves, in percent.
pub const LEVEL_PERCENT: i64 = 30;

/// The part of the remaining difference by which a slot of the season moves in each season, in
/// percent.
pub const SEASON_PERCENT: i64 = 50;

/// Slots of a season: a day in minutes.
pub const SLOTS_MAX: usize = 1440;

/// Highest rate: a million requests per second. Higher ones are clamped to it.
pub const RATE_MAX: u64 = 1_000_000_000;

/// The state of the prediction.
#[derive(Clone, Debug)]
pub struct Predictor {
    level: Option<i64>,
    season: Vec<i64>,
    intervals_per_slot: u64,
    intervals: u64,
}

impl Predictor {
    /// A prediction without a season.
    pub fn new() -> Predictor {
        Predictor::with_season(1, 1)
    }

    /// A prediction with a season of `slots` slots of `intervals_per_slot` intervals each. `slots`
    /// is clamped to 1 to [`SLOTS_MAX`].
    pub fn with_season(slots: usize, intervals_per_slot: u64) -> Predictor {
        let slots = slots.clamp(1, SLOTS_MAX);
        Predictor { level: None, season: vec![0; slots], intervals_per_slot: intervals_per_slot.max(1), intervals: 0 }
    }

    /// The predicted rate of the next interval.
    pub fn predict(&self) -> u64 {
        let rate = self.level.unwrap_or(0) + self.season[self.slot()];
        u64::try_from(rate).unwrap_or(0)
    }

    /// Notes the rate of an interval that has passed.
    pub fn observe(&mut self, rate: u64) {
        let rate = rate.min(RATE_MAX) as i64;
        let slot = self.slot();
        let level = self.level.unwrap_or(rate);
        let level = level + (rate - self.season[slot] - level) * LEVEL_PERCENT / 100;
        self.level = Some(level);
        if self.season.len() > 1 {
            // Each interval of a slot contributes its part of the slot's move.
            let part = (SEASON_PERCENT / self.intervals_per_slot as i64).max(1);
            self.season[slot] += (rate - level - self.season[slot]) * part / 100;
        }
        self.intervals += 1;
    }

    fn slot(&self) -> usize {
        (self.intervals / self.intervals_per_slot) as usize % self.season.len()
    }
}

impl Default for Predictor {
    fn default() -> Predictor {
        Predictor::new()
    }
}
