//! A table of functions or groups by id.

use super::id_set::Id;
use std::marker::PhantomData;

const PAGE: usize = 64;

/// Values by ids that are counted up. A lookup indexes two arrays. Ids are never reused, so values
/// lie in pages, and a page without values is freed.
pub(super) struct IdTable<I, T> {
    pages: Vec<Option<Box<Page<T>>>>,
    len: usize,
    ids: PhantomData<I>,
}

struct Page<T> {
    values: [Option<T>; PAGE],
    len: usize,
}

impl<I, T> Default for IdTable<I, T> {
    fn default() -> IdTable<I, T> {
        IdTable { pages: Vec::new(), len: 0, ids: PhantomData }
    }
}

impl<I: Id, T> IdTable<I, T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, id: I) -> Option<&T> {
        self.pages.get(id.index() / PAGE)?.as_ref()?.values[id.index() % PAGE].as_ref()
    }

    pub(super) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.pages.get_mut(id.index() / PAGE)?.as_mut()?.values[id.index() % PAGE].as_mut()
    }

    pub(super) fn contains(&self, id: I) -> bool {
        self.get(id).is_some()
    }

    /// The value of an id, which is added if there is none.
    pub(super) fn get_or_default(&mut self, id: I) -> &mut T
    where
        T: Default,
    {
        if !self.contains(id) {
            self.insert(id, T::default());
        }
        self.get_mut(id).expect("it is there or was inserted")
    }

    /// Sets the value of an id.
    pub(super) fn insert(&mut self, id: I, value: T) {
        let at = id.index() / PAGE;
        if at >= self.pages.len() {
            self.pages.resize_with(at + 1, || None);
        }
        let empty = || Box::new(Page { values: std::array::from_fn(|_| None), len: 0 });
        let page = self.pages[at].get_or_insert_with(empty);
        let is_new = page.values[id.index() % PAGE].replace(value).is_none();
        page.len += usize::from(is_new);
        self.len += usize::from(is_new);
    }

    pub(super) fn remove(&mut self, id: I) -> Option<T> {
        let slot = self.pages.get_mut(id.index() / PAGE)?;
        let page = slot.as_mut()?;
        let value = page.values[id.index() % PAGE].take()?;
        page.len -= 1;
        self.len -= 1;
        if page.len == 0 {
            *slot = None;
        }
        Some(value)
    }

    /// All ids and values, by ascending id.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + Clone {
        let pages = self.pages.iter().enumerate().filter_map(|(at, page)| Some((at, page.as_ref()?)));
        pages.flat_map(|(at, page)| {
            let values = page.values.iter().enumerate();
            values.filter_map(move |(index, value)| Some((I::at(at * PAGE + index), value.as_ref()?)))
        })
    }

    /// All ids, ascending.
    pub(super) fn keys(&self) -> impl DoubleEndedIterator<Item = I> + Clone {
        self.iter().map(|(id, _)| id)
    }

    /// Removes the values whose ids do not fulfil `is_kept`.
    pub(super) fn retain(&mut self, is_kept: impl Fn(I) -> bool) {
        let gone: Vec<I> = self.keys().filter(|id| !is_kept(*id)).collect();
        for id in gone {
            self.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::event::GroupId;
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn a_table_answers_as_a_map() {
        let mut rng = Rng::new(1);
        let (mut table, mut model) = (IdTable::<GroupId, u64>::default(), BTreeMap::new());
        for round in 0..4000 {
            let id = GroupId(rng.below(500) as u32);
            match rng.below(4) {
                0 => {
                    table.insert(id, round);
                    model.insert(id, round);
                }
                1 => assert_eq!(table.get_or_default(id), model.entry(id).or_default()),
                _ => assert_eq!(table.remove(id), model.remove(&id)),
            }
            assert_eq!((table.get(id), table.len()), (model.get(&id), model.len()));
            assert_eq!(table.get_mut(id), model.get_mut(&id));
        }
        assert!(table.iter().map(|(id, value)| (id, *value)).eq(model.iter().map(|(id, value)| (*id, *value))));
        assert!(table.keys().rev().eq(model.keys().rev().copied()));
        table.retain(|id| id.0 % 3 == 0);
        model.retain(|id, _| id.0 % 3 == 0);
        assert!(table.keys().eq(model.keys().copied()));
        table.retain(|_| false);
        assert!(table.len() == 0 && table.pages.iter().all(Option::is_none), "empty pages are freed");
    }
}
