//! Predicts the load of a function: an exponentially weighted mean and a season.
//!
//! FaST-GShare scales to a "predicted load" that it does not specify. Here the prediction for the
//! next interval is `level + season[slot]`. Each observed rate moves the level by [`LEVEL_PERCENT`]
//! of the difference, and the season's slot of that interval by [`SEASON_PERCENT`] of what is left.
//! A season is, for example, a day in slots of ten minutes; without one the mean is left. Rates are
//! in thousandths of a request per second.

/// How much of a difference the level follows at once.
pub const LEVEL_PERCENT: i64 = 30;

/// How much of the remaining difference the season follows, once each season.
pub const SEASON_PERCENT: i64 = 50;

/// Slots of a season: a day in minutes.
pub const SLOTS_MAX: usize = 1440;

/// Highest rate that is taken: a million requests a second.
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

    /// A prediction with a season of `slots` slots of so many intervals each. Values beyond 1 and
    /// [`SLOTS_MAX`] are taken as these.
    pub fn with_season(slots: usize, intervals_per_slot: u64) -> Predictor {
        let slots = slots.clamp(1, SLOTS_MAX);
        Predictor { level: None, season: vec![0; slots], intervals_per_slot: intervals_per_slot.max(1), intervals: 0 }
    }

    /// The rate of the next interval.
    pub fn predict(&self) -> u64 {
        let rate = self.level.unwrap_or(0) + self.season[self.slot()];
        u64::try_from(rate).unwrap_or(0)
    }

    /// An interval has passed with this rate.
    pub fn observe(&mut self, rate: u64) {
        let rate = rate.min(RATE_MAX) as i64;
        let slot = self.slot();
        let level = self.level.unwrap_or(rate);
        let level = level + (rate - self.season[slot] - level) * LEVEL_PERCENT / 100;
        self.level = Some(level);
        if self.season.len() > 1 {
            // A slot moves by its part in each of its intervals.
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
