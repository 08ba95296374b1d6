//! The free rectangles of one device (maximal rectangles, Jylänki 2010).

/// A rectangle of time (`w`, from `x`) and compute units (`h`, from `y`). Units depend on the user:
/// hundredths of a device in [`super::Packer`]; millionths of the time and compute units in
/// [`super::Layout::rect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rect {
    /// Where its time begins.
    pub x: u32,
    /// Where its compute units begin.
    pub y: u32,
    /// Its time.
    pub w: u32,
    /// Its compute units.
    pub h: u32,
}

impl Rect {
    pub(super) fn area(self) -> u64 {
        u64::from(self.w) * u64::from(self.h)
    }

    fn right(self) -> u32 {
        self.x + self.w
    }

    fn top(self) -> u32 {
        self.y + self.h
    }

    /// Whether two rectangles overlap.
    pub fn overlaps(self, other: Rect) -> bool {
        self.x < other.right() && other.x < self.right() && self.y < other.top() && other.y < self.top()
    }

    /// Whether this rectangle contains another one.
    pub fn contains(self, other: Rect) -> bool {
        self.x <= other.x && self.y <= other.y && other.right() <= self.right() && other.top() <= self.top()
    }

    /// The maximal rectangles that are left of this one when `cut` is removed from it.
    fn without(self, cut: Rect) -> impl Iterator<Item = Rect> {
        let left = Rect { w: cut.x.saturating_sub(self.x), ..self };
        let right = Rect { x: cut.right(), w: self.right().saturating_sub(cut.right()), ..self };
        let below = Rect { h: cut.y.saturating_sub(self.y), ..self };
        let above = Rect { y: cut.top(), h: self.top().saturating_sub(cut.top()), ..self };
        [left, right, below, above].into_iter().filter(|rect| rect.w > 0 && rect.h > 0)
    }
}

/// The rule by which the best free rectangle is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The one with the smallest area, as in FaST-GShare.
    Area,
    /// The one with the smallest remainder on its shorter remaining side.
    ShortSide,
    /// The one whose `y` is smallest.
    Bottom,
}

impl Fit {
    pub(super) const ALL: [Fit; 3] = [Fit::Area, Fit::ShortSide, Fit::Bottom];

    fn score(self, free: &Rect, w: u32, h: u32) -> u64 {
        match self {
            Fit::Area => free.area() - Rect { w, h, ..*free }.area(),
            Fit::ShortSide => (free.w - w).min(free.h - h).into(),
            Fit::Bottom => (free.y + h).into(),
        }
    }
}

/// Maximal free rectangles: none contains another one. Every free rectangle lies in one of them,
/// unless rectangles were given back since the list was built.
#[derive(Clone, Debug)]
pub(super) struct FreeList {
    size: (u32, u32),
    rects: Vec<Rect>,
}

impl FreeList {
    pub(super) fn new(w: u32, h: u32) -> FreeList {
        FreeList { size: (w, h), rects: vec![Rect { x: 0, y: 0, w, h }] }
    }

    /// The free rectangles around placed ones.
    pub(super) fn around(w: u32, h: u32, placed: impl Iterator<Item = Rect>) -> FreeList {
        let mut free = FreeList::new(w, h);
        placed.for_each(|rect| free.take(rect));
        free
    }

    pub(super) fn len(&self) -> usize {
        self.rects.len()
    }

    pub(super) fn rects(&self) -> &[Rect] {
        &self.rects
    }

    /// The place of a rectangle: the corner with the smallest `x` and `y` of the best free
    /// rectangle that holds it. Also returns the score of that place; less is better.
    pub(super) fn place(&self, fit: Fit, w: u32, h: u32) -> Option<(u64, Rect)> {
        let holds = self.rects.iter().filter(|free| free.w >= w && free.h >= h);
        let best = holds.min_by_key(|free| (fit.score(free, w, h), free.y, free.x))?;
        Some((fit.score(best, w, h), Rect { x: best.x, y: best.y, w, h }))
    }

    /// Takes a rectangle: splits each free rectangle that overlaps it, and drops parts that lie
    /// within another free rectangle.
    pub(super) fn take(&mut self, taken: Rect) {
        let mut rects = Vec::with_capacity(self.rects.len() + 4);
        for free in &self.rects {
            if free.overlaps(taken) {
                rects.extend(free.without(taken));
            } else {
                rects.push(*free);
            }
        }
        self.rects = without_redundant(rects);
    }

    /// Gives a rectangle back. It is not joined with adjacent free rectangles until the list is
    /// rebuilt.
    pub(super) fn give_back(&mut self, freed: Rect) {
        self.rects.push(freed);
        self.rects = without_redundant(std::mem::take(&mut self.rects));
    }

    pub(super) fn size(&self) -> (u32, u32) {
        self.size
    }
}

fn without_redundant(mut rects: Vec<Rect>) -> Vec<Rect> {
    rects.sort_unstable();
    rects.dedup();
    let is_redundant = |rect: &Rect| rects.iter().any(|other| other != rect && other.contains(*rect));
    let redundant: Vec<bool> = rects.iter().map(is_redundant).collect();
    let kept = rects.into_iter().zip(redundant);
    kept.filter(|(_, is_redundant)| !is_redundant).map(|(rect, _)| rect).collect()
}
