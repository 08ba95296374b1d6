//! A timeline: records as tracks of slices, marks and counters.

mod build;
#[cfg(test)]
mod tests;

use crate::record::Record;
use atoll_core::{Class, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The group of placements.
const PLACEMENT: &str = "placement";

/// The name of a track of placements, before the number of the device.
const TO_DEVICE: &str = "to device ";

/// A timeline: groups of tracks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The groups, in display order.
    pub groups: Vec<Group>,
}

/// Tracks that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its tracks, in display order.
    pub tracks: Vec<Track>,
}

/// One row of the timeline. Its slices are in order and do not overlap. The children of a slice lie
/// within it and do not overlap either.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Track {
    /// Its name.
    pub name: String,
    /// Intervals, in order.
    pub slices: Vec<Slice>,
    /// Instants, in order.
    pub marks: Vec<Mark>,
    /// Counter values, each with the time from which it holds, in order. A track with a counter has
    /// neither slices nor marks.
    pub counter: Vec<(Nanos, u64)>,
}

/// An interval on a track.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// When it begins.
    pub begin: Nanos,
    /// When it ends: never before it begins.
    pub end: Nanos,
    /// Its name.
    pub name: Arc<str>,
    /// Slices with the same number are connected by arrows, in order of time.
    pub flow: Option<u64>,
    /// Named details.
    pub facts: Vec<(&'static str, Value)>,
    /// Slices nested in it.
    pub children: Vec<Slice>,
}

/// An instant on a track.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// When it happened.
    pub at: Nanos,
    /// Its name.
    pub name: &'static str,
    /// Named details.
    pub facts: Vec<(&'static str, Value)>,
}

/// The value of a detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A word that this crate defines.
    Word(&'static str),
    /// A name from outside this crate, such as that of a function.
    Text(Arc<str>),
}

/// The names and the class of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionName {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The default class of its invocations.
    pub class: Class,
    /// The names of the nodes of its graph.
    pub nodes: Vec<String>,
}

impl Timeline {
    /// Builds the timeline of records, given in the order in which they were written. With
    /// `separate`, each tenant has its own tracks of compute units and device queues. The timeline
    /// begins at `from`, or with the first record: slices are cut there, and earlier ones are left
    /// out.
    pub fn of(
        records: &[Record],
        functions: &BTreeMap<u64, FunctionName>,
        separate: bool,
        from: Option<Nanos>,
    ) -> Timeline {
        build::timeline(records, functions, separate, from)
    }

    /// Merges the timelines of several devices. The device's name is put before the name of each
    /// group, unless there is only one device.
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

    /// Replaces the numbers of devices in the tracks of placements by names.
    pub fn name_devices(&mut self, names: &[String]) {
        let groups = self.groups.iter_mut().filter(|group| group.name.ends_with(PLACEMENT));
        for track in groups.flat_map(|group| &mut group.tracks) {
            let number = track.name.strip_prefix(TO_DEVICE).and_then(|number| number.parse::<usize>().ok());
            if let Some(name) = number.and_then(|number| names.get(number)) {
                track.name = format!("to {name}");
            }
        }
    }

    /// Adds a track that marks gaps: the time of each, and the number of missing records.
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
        self.groups.push(Group { name: "recording".into(), tracks: vec![track.settle(Nanos(0))] });
    }

    /// The track with this name in the group with this name.
    pub fn track(&self, group: &str, track: &str) -> Option<&Track> {
        self.groups.iter().find(|found| found.name == group)?.tracks.iter().find(|found| found.name == track)
    }
}

impl Track {
    fn new(name: impl Into<String>) -> Track {
        Track { name: name.into(), ..Track::default() }
    }

    /// Sorts everything by time, removes slices and marks that ended before `from`, and cuts slices
    /// that begin before `from` or overlap.
    fn settle(mut self, from: Nanos) -> Track {
        remove_before(&mut self.slices, from);
        settle(&mut self.slices, from, Nanos(u64::MAX));
        self.marks.retain(|mark| mark.at >= from);
        self.marks.sort_by_key(|mark| mark.at);
        self.counter.iter_mut().for_each(|(at, _)| *at = from.max(*at));
        self.counter.sort_by_key(|(at, _)| *at);
        self
    }
}

/// Removes slices and children that ended before `from`.
fn remove_before(slices: &mut Vec<Slice>, from: Nanos) {
    slices.retain(|slice| slice.begin >= from || slice.end > from);
    slices.iter_mut().for_each(|slice| remove_before(&mut slice.children, from));
}

/// Sorts slices and cuts them, so that none begins before the previous one ends and all lie within
/// `from..=to`; likewise their children.
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

/// Distributes slices over as few rows as possible, so that none overlap within a row.
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
