//! The plans of all devices of a fleet, in which instances are placed and moved.

use crate::ids::ClientId;
use crate::packing::{Divisible, InstanceId, Layout};
use crate::scaling::host::{Entry, Host, Need, Placed, Relocation, Spot, Stay};
use crate::tokens::{ShareSpec, check_lane};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// How many sets of instances a decision tries to move, which bounds its time.
const TRIES_MAX: usize = 128;

/// Of a device with more instances that may move, pairs are not tried.
const PAIRS_OF_MAX: usize = 24;

/// A device that cannot be divided keeps shares in time; partitions count by their size.
const WITHOUT_UNITS: Divisible = Divisible { units: 100, step: 1, lanes_max: u32::MAX };

/// The bit of a device in [`Need::devices`].
fn bit(device: usize) -> u64 {
    u32::try_from(device).ok().and_then(|device| 1_u64.checked_shl(device)).unwrap_or(0)
}

/// A device with the instances that it is to have.
#[derive(Clone, Debug)]
struct Site<'a> {
    host: &'a Host,
    layout: Layout,
    entries: Vec<Entry>,
}

impl<'a> Site<'a> {
    fn new(host: &'a Host) -> Site<'a> {
        let divisible = if host.divisible.step == 0 { WITHOUT_UNITS } else { host.divisible };
        let mut layout = Layout::new(divisible);
        for (client, share) in (0..).zip(&host.reserved) {
            layout.set(ClientId(client), share);
        }
        Site { host, layout, entries: Vec::new() }
    }

    /// Adds an instance, whether there is room or not.
    fn add(&mut self, entry: &Entry) {
        self.layout.set(entry.client, &entry.need.share);
        self.entries.push(*entry);
    }

    /// The device with another instance, if there is a rectangle for it and its engine accepts the
    /// share.
    fn with(&self, entry: &Entry) -> Option<Site<'a>> {
        // Most devices that are full are skipped here, before everything is arranged anew.
        if !self.layout.has_area(&entry.need.share) {
            return None;
        }
        let mut site = self.clone();
        site.add(entry);
        (site.layout.rect(entry.client).is_some() && site.can_keep_shares()).then_some(site)
    }

    /// Whether the device can keep all shares together, as its engine checks. Those that are not
    /// bound to compute units have no rectangle, but their time is promised, too.
    fn can_keep_shares(&self) -> bool {
        let reserved = (0..).map(ClientId).zip(&self.host.reserved);
        let own = self.entries.iter().map(|entry| (entry.client, &entry.need.share));
        let granted = |(client, share): (ClientId, &ShareSpec)| {
            share.with_partition(self.layout.granted(client).unwrap_or(share.partition()))
        };
        check_lane(&reserved.chain(own).map(granted).collect::<Vec<_>>()).is_ok()
    }

    fn remove(&mut self, client: ClientId) {
        self.layout.remove(client);
        self.entries.retain(|entry| entry.client != client);
    }

    fn has_constants(&self, function: u32) -> bool {
        self.entries.iter().any(|entry| entry.need.constants.function == function)
    }

    /// Memory that its instances take, and another one.
    fn bytes_with(&self, need: Option<&Need>) -> u64 {
        let needs = || self.entries.iter().map(|entry| &entry.need).chain(need);
        let mut seen = BTreeSet::new();
        let constants = needs().filter(|need| seen.insert(need.constants.function)).map(|need| need.constants.bytes);
        let constants = constants.fold(0, u64::saturating_add);
        needs().map(|need| need.bytes).fold(constants, u64::saturating_add)
    }

    /// Whether there is memory for an instance, which may be one of its own.
    fn has_memory(&self, entry: &Entry) -> bool {
        let is_here = self.entries.iter().any(|own| own.client == entry.client);
        self.bytes_with((!is_here).then_some(&entry.need)) <= self.host.bytes
    }
}

/// The devices of a fleet.
#[derive(Clone, Debug)]
pub(super) struct Fleet<'a> {
    /// As they are planned: without instances that leave.
    sites: Vec<Site<'a>>,
    /// The instances that take room on each device now: also those that leave or move away.
    taken: Vec<Vec<Entry>>,
    next: u32,
}

/// A plan with other places of some instances.
pub(super) struct Repacked<'a> {
    /// The device of the new instance, or the one that is empty.
    pub(super) device: usize,
    pub(super) moves: Vec<Relocation>,
    fleet: Fleet<'a>,
}

impl Repacked<'_> {
    fn cost_ns(&self) -> u64 {
        self.moves.iter().map(|relocation| relocation.cost_ns).fold(0, u64::saturating_add)
    }
}

impl<'a> Fleet<'a> {
    pub(super) fn new(hosts: &'a [Host], placed: &[Placed]) -> Fleet<'a> {
        // Numbers of clients begin behind those of tenants.
        let next = hosts.iter().map(|host| host.reserved.len() as u32).max().unwrap_or(0);
        let sites = hosts.iter().map(Site::new).collect();
        let mut fleet = Fleet { sites, taken: vec![Vec::new(); hosts.len()], next };
        let mut placed = placed.to_vec();
        placed.sort_by_key(|placed| (Reverse(placed.need.size()), placed.id));
        for Placed { id, need, device, stay } in placed {
            let entry = fleet.entry(id, need, stay);
            let Some(site) = fleet.sites.get_mut(device) else { continue };
            if stay != Stay::Leaving {
                site.add(&entry);
            }
            fleet.taken[device].push(entry);
        }
        fleet
    }

    /// A new entry.
    pub(super) fn entry(&mut self, id: InstanceId, need: Need, stay: Stay) -> Entry {
        let client = ClientId(self.next);
        self.next += 1;
        Entry { id, client, need, stay }
    }

    /// The devices that take an instance.
    fn open(&self, need: &Need) -> impl Iterator<Item = usize> {
        let devices = need.devices;
        let takes = move |(at, site): (usize, &Site<'_>)| (site.host.is_open && devices & bit(at) != 0).then_some(at);
        self.sites.iter().enumerate().filter_map(takes)
    }

    /// Whether any device takes an instance.
    pub(super) fn is_taken_somewhere(&self, need: &Need) -> bool {
        self.open(need).next().is_some()
    }

    /// The device with the smallest free rectangle for an instance, among those that have instances
    /// or among those that have none. A device on which others have to be arranged anew comes after
    /// those, and one that others have to leave first comes last.
    pub(super) fn best(&self, entry: &Entry, is_used: bool) -> Option<usize> {
        let candidates = self.open(&entry.need).filter(|at| self.sites[*at].entries.is_empty() != is_used);
        let rank = |at: usize| {
            let site = &self.sites[at];
            let fits = site.has_memory(entry) && site.with(entry).is_some();
            let slack = site.layout.slack(&entry.need.share);
            fits.then(|| (self.waits(at, entry), slack.is_none(), slack, at))
        };
        candidates.filter_map(rank).min().map(|(_, _, _, at)| at)
    }

    /// Whether a device has a rectangle for an instance once the instances that are leaving it are
    /// gone.
    pub(super) fn has_room(&self, device: usize, entry: &Entry) -> bool {
        self.sites.get(device).is_some_and(|site| site.with(entry).is_some())
    }

    /// The device with the most memory left that has a rectangle for an instance.
    pub(super) fn best_over_memory(&self, entry: &Entry) -> Option<usize> {
        let over = |at: usize| {
            let site = &self.sites[at];
            site.with(entry).map(|_| (site.bytes_with(Some(&entry.need)).saturating_sub(site.host.bytes), at))
        };
        self.open(&entry.need).filter_map(over).min().map(|(_, at)| at)
    }

    /// Puts an instance onto a device that has room for it.
    pub(super) fn put(&mut self, device: usize, entry: &Entry) -> Spot {
        self.sites[device].add(entry);
        self.settle(device, entry)
    }

    /// Where an instance that is planned for a device goes: there at once, if those that leave it
    /// do not have to be gone first.
    pub(super) fn settle(&mut self, device: usize, entry: &Entry) -> Spot {
        if !self.fits_now(device, entry) {
            return Spot::Later { device };
        }
        self.taken[device].push(*entry);
        let site = &self.sites[device];
        Spot::Now { device, is_over_memory: site.bytes_with(None) > site.host.bytes }
    }

    /// Whether an instance has to wait until others have left a device.
    fn waits(&self, device: usize, entry: &Entry) -> bool {
        let planned = &self.sites[device].entries;
        let is_leaving = |taken: &Entry| planned.iter().all(|planned| planned.client != taken.client);
        self.taken[device].iter().any(is_leaving) && !self.fits_now(device, entry)
    }

    /// Whether there is a rectangle beside everything that takes room on a device now, and memory,
    /// unless even the plan exceeds the memory.
    fn fits_now(&self, device: usize, entry: &Entry) -> bool {
        let planned = &self.sites[device];
        let mut site = Site::new(planned.host);
        self.taken[device].iter().for_each(|taken| site.add(taken));
        (site.has_memory(entry) || !planned.has_memory(entry)) && site.with(entry).is_some()
    }

    /// The cheapest moves after which there is room for an instance, if they cost at most so much.
    /// They go to devices that have instances, or to any.
    pub(super) fn repack(&self, entry: &Entry, pay_ns: u64, to_any: bool) -> Option<Repacked<'a>> {
        // There is no other device to move to.
        if self.sites.iter().filter(|site| site.host.is_open).count() < 2 {
            return None;
        }
        let mut sets: Vec<(usize, usize, Vec<Entry>)> = Vec::new();
        for device in self.open(&entry.need) {
            sets.extend(self.sets(device).into_iter().enumerate().map(|(number, away)| (number, device, away)));
        }
        // The first sets of each device, so that one with many instances does not use all tries.
        sets.sort_by_key(|(number, device, _)| (*number, *device));
        let has_area = |(_, device, away): &(usize, usize, Vec<Entry>)| {
            let mut layout = self.sites[*device].layout.clone();
            away.iter().for_each(|gone| layout.remove(gone.client));
            layout.has_area(&entry.need.share)
        };
        let mut best: Option<Repacked<'a>> = None;
        // Sets that leave too little area are no tries.
        for (_, device, away) in sets.into_iter().filter(has_area).take(TRIES_MAX) {
            let Some(found) = self.moved(device, &away, Some(entry), to_any) else { continue };
            let rank = |repacked: &Repacked<'_>| (repacked.cost_ns(), repacked.moves.len());
            let is_better = best.as_ref().is_none_or(|best| rank(&found) < rank(best));
            if found.cost_ns() <= pay_ns && is_better {
                best = Some(found);
            }
        }
        best
    }

    /// The moves after which a device with instances has none, if they cost at most so much. The
    /// device with the smallest instances is tried first. Devices that are lost or drained are left
    /// out: their instances are replaced in any case.
    pub(super) fn emptied(&self, pay_ns: u64) -> Option<Repacked<'a>> {
        let is_movable = |site: &Site<'_>| site.entries.iter().all(|entry| entry.move_ns(true).is_some());
        let may_be_freed = |site: &Site<'_>| site.host.is_open && !site.entries.is_empty() && is_movable(site);
        let sizes = self.sites.iter().enumerate().filter(|(_, site)| may_be_freed(site));
        let size = |site: &Site<'_>| site.entries.iter().map(|entry| entry.need.size()).sum::<u64>();
        let mut devices: Vec<(u64, usize)> = sizes.map(|(at, site)| (size(site), at)).collect();
        devices.sort_unstable();
        devices.into_iter().take(TRIES_MAX).find_map(|(_, device)| {
            let found = self.moved(device, &self.sites[device].entries, None, false)?;
            (found.cost_ns() <= pay_ns).then_some(found)
        })
    }

    /// Sets of instances of a device that may move: single ones, pairs, and more and more of them.
    fn sets(&self, device: usize) -> Vec<Vec<Entry>> {
        let entries = self.sites[device].entries.iter().copied();
        let mut movable: Vec<Entry> = entries.filter(|entry| entry.move_ns(true).is_some()).collect();
        movable.sort_by_key(|entry| (entry.need.size(), entry.id));
        let mut sets: Vec<Vec<Entry>> = movable.iter().map(|entry| vec![*entry]).collect();
        if movable.len() <= PAIRS_OF_MAX {
            for (at, first) in movable.iter().enumerate() {
                sets.extend(movable[at + 1..].iter().map(|second| vec![*first, *second]));
            }
        }
        sets.extend((3..=movable.len()).map(|count| movable[..count].to_vec()));
        sets
    }

    /// The plan in which instances of a device have moved away and another one is there, if there
    /// is room for all of them.
    fn moved(&self, device: usize, away: &[Entry], new: Option<&Entry>, to_any: bool) -> Option<Repacked<'a>> {
        let mut fleet = self.clone();
        away.iter().for_each(|entry| fleet.sites[device].remove(entry.client));
        if let Some(new) = new {
            fleet.sites[device] = fleet.sites[device].with(new).filter(|_| fleet.sites[device].has_memory(new))?;
        }
        let mut away = away.to_vec();
        away.sort_by_key(|entry| (Reverse(entry.need.size()), entry.id));
        let mut moves = Vec::new();
        for entry in away {
            let used = fleet.best_beside(device, &entry, true);
            let to = if to_any { used.or_else(|| fleet.best_beside(device, &entry, false)) } else { used }?;
            let cost_ns = entry.move_ns(fleet.sites[to].has_constants(entry.need.constants.function))?;
            moves.push(Relocation { instance: entry.id, from: device, to, cost_ns });
            // It moves once.
            let entry = Entry { stay: Stay::Fixed, ..entry };
            fleet.sites[to].add(&entry);
            fleet.taken[to].push(entry);
        }
        Some(Repacked { device, moves, fleet })
    }

    /// As [`Fleet::best`], of devices other than one, where there is room already.
    fn best_beside(&self, device: usize, entry: &Entry, is_used: bool) -> Option<usize> {
        let others = Need { devices: entry.need.devices & !bit(device), ..entry.need };
        let to = self.best(&Entry { need: others, ..*entry }, is_used)?;
        self.fits_now(to, entry).then_some(to)
    }

    /// Makes a plan the one that is followed.
    pub(super) fn adopt(&mut self, repacked: Repacked<'a>) {
        let next = self.next;
        *self = Fleet { next, ..repacked.fleet };
    }
}
