//! Records as tracks of slices, marks and counters.

mod build;
#[cfg(test)]
mod tests;

use crate::record::Record;
use atoll_core::{Class, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tracks in groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Groups in the order in which to show them.
    pub groups: Vec<Group>,
}

/// Tracks that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its tracks in the order in which to show them.
    pub tracks: Vec<Track>,
}

/// One row of the timeline. Slices are in order and do not overlap; nor do the children of one, which
/// lie within it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Track {
    /// Its name.
    pub name: String,
    /// What went on, from when to when.
    pub slices: Vec<Slice>,
    /// What happened at a moment, in order.
    pub marks: Vec<Mark>,
    /// From when on which number held, in order; a track that has some has nothing else.
    pub counter: Vec<(Nanos, u64)>,
}

/// Something that went on.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// From here.
    pub begin: Nanos,
    /// To here, at the earliest its begin.
    pub end: Nanos,
    /// What.
    pub name: Arc<str>,
    /// Slices with the same number are connected by arrows, in order of time.
    pub flow: Option<u64>,
    /// What else is known of it.
    pub facts: Vec<(&'static str, Value)>,
    /// Its parts.
    pub children: Vec<Slice>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// When.
    pub at: Nanos,
    /// What.
    pub name: &'static str,
    /// What else is known of it.
    pub facts: Vec<(&'static str, Value)>,
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A word of this crate.
    Word(&'static str),
    /// A name from outside this crate, such as that of a function.
    Text(Arc<str>),
}

/// What is known of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionName {
    /// Whose it is.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// The nodes of its graph.
    pub nodes: Vec<String>,
}

impl Timeline {
    /// The timeline of records in the order in which they were written; compute units and
    /// device queues have a track for each tenant where `separate` says that each has its own.
    pub fn of(records: &[Record], functions: &BTreeMap<u64, FunctionName>, separate: bool) -> Timeline {
        build::timeline(records, functions, separate)
    }

    /// Merges the timelines of several devices: the groups of each are named after it. One device
    /// alone keeps the names of its groups.
    pub fn together(devices: Vec<(String, Timeline)>) -> Timeline {
        let is_alone = devices.len() == 1;
        let of = |(device, timeline): (String, Timeline)| {
            timeline.groups.into_iter().map(move |group| match is_alone {
                true => group,
                false => Group { name: format!("{device} {}", group.name), ..group },
            })
        };
        Timeline { groups: devices.into_iter().flat_map(of).collect() }
    }

    /// Marks where records are missing, and how many.
    pub fn add_gaps(&mut self, gaps: &[(Nanos, u64)]) {
        if gaps.is_empty() {
            return;
        }
        let mark = |&(at, count): &(Nanos, u64)| Mark {
            at,
            name: "records are missing",
            facts: vec![("count", Value::Number(count))],
        };
        let track = Track { marks: gaps.iter().map(mark).collect(), ..Track::new("gaps") };
        self.groups.push(Group { name: "recording".into(), tracks: vec![track.settle()] });
    }

    /// The track of a group and a name.
    pub fn track(&self, group: &str, track: &str) -> Option<&Track> {
        self.groups.iter().find(|found| found.name == group)?.tracks.iter().find(|found| found.name == track)
    }
}

impl Track {
    fn new(name: impl Into<String>) -> Track {
        Track { name: name.into(), ..Track::default() }
    }

    /// Sorts everything by time, for any records.
    fn settle(mut self) -> Track {
        settle(&mut self.slices, Nanos(0), Nanos(u64::MAX));
        self.marks.sort_by_key(|mark| mark.at);
        self.counter.sort_by_key(|(at, _)| *at);
        self
    }
}

/// Cuts slices so that each begins when the one before it is over, and none reaches beyond
/// `from..=to`.
fn settle(slices: &mut [Slice], from: Nanos, to: Nanos) {
    slices.sort_by_key(|slice| (slice.begin, slice.end));
    let mut last = from;
    for slice in slices {
        slice.begin = slice.begin.clamp(last, to);
        slice.end = slice.end.clamp(slice.begin, to);
        last = slice.end;
        settle(&mut slice.children, slice.begin, slice.end);
    }
}

/// Distributes slices that overlap over as few rows as possible.
fn lanes(mut slices: Vec<Slice>) -> Vec<Vec<Slice>> {
    slices.sort_by_key(|slice| (slice.begin, slice.end));
    let mut lanes: Vec<Vec<Slice>> = Vec::new();
    for slice in slices {
        let free = lanes.iter_mut().find(|lane| lane.last().is_none_or(|last| last.end <= slice.begin));
        match free {
            Some(lane) => lane.push(slice),
            None => lanes.push(vec![slice]),
        }
    }
    lanes
}
