//! Accesses whose lanes are further apart than an element.

use super::*;
use atoll_emit::writer::intrinsics;

impl Emitter<'_> {
    /// The pointers of lanes that are `stride` bytes apart.
    pub(super) fn spread_pointer(&mut self, pointer: &Val, stride: i64) -> Val {
        let steps = self.progression(Elem::I64, stride);
        self.w.value(Ty { elem: Elem::Ptr, lanes: LANES }, format_args!("getelementptr i8, {pointer}, {steps}"))
    }

    /// Loads every second element from `pointer` on, by two wide loads: one that begins with the
    /// element of the first lane, and one that ends with that of the last. Elements between two
    /// active lanes may be read as well, but none before the first or after the last.
    pub(super) fn load_every_second(&mut self, elem: Elem, pointer: &Val) -> Val {
        let (ty, half) = (Ty { elem, lanes: LANES }, LANES / 2);
        let start = LANES - 1;
        // The lane whose element is at `at` of a load; `None` if it is between two lanes.
        let lane_at = |start: u32, at: u32| (start + at).is_multiple_of(2).then_some((start + at) / 2);
        let [low, high] = [0, start].map(|start| {
            let from = self.w.offset_const(pointer, u64::from(start * elem.bytes()));
            let Some(mask) = self.mask.clone() else {
                return self.w.value(ty, format_args!("load {ty}, {from}, align {}", elem.bytes()));
            };
            let pattern: Vec<u32> = (0..LANES).map(|at| lane_at(start, at).unwrap_or(LANES)).collect();
            let mask = self.w.shuffle2(&mask, &constant(mask.ty, 0), &pattern);
            intrinsics::masked_load(&mut self.w, ty, &from, elem.bytes(), &mask, self.level.vector_bits())
        });
        let lanes: Vec<u32> =
            (0..LANES).map(|lane| if lane < half { 2 * lane } else { LANES + 2 * lane - start }).collect();
        self.w.shuffle2(&low, &high, &lanes)
    }
}
