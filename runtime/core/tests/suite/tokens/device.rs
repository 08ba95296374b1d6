//! A simulated device with a ledger: clients have launches of blocks, in virtual time. Work in one
//! partition does not slow down work in another.

use atoll_core::tokens::{BusyTime, ShareSpec, ShareState, Span, TokenConfig, TokenLedger};
use atoll_core::{Class, ClientId, LaneId, Nanos};
use std::collections::BTreeMap;

/// The work of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) class: Class,
    /// Device time that is left, in nanoseconds.
    pub(crate) left: u64,
    /// Device time of a launch.
    pub(crate) launch: u64,
    /// Device time of a block: a launch that is told to exit ends with its current block.
    pub(crate) block: u64,
}

/// A launch on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) began: u64,
    pub(crate) ends: u64,
    /// When the ledger learns of its end.
    pub(crate) reported: u64,
    pub(crate) block: u64,
    pub(crate) partition: u32,
    pub(crate) span: Option<Span>,
    pub(crate) is_told: bool,
}

pub(crate) struct Worker {
    pub(crate) share: ShareSpec,
    pub(crate) work: Option<Work>,
    pub(crate) launch: Option<Launch>,
    /// Device time that it used, by window.
    pub(crate) used: BTreeMap<u64, u64>,
}

pub(crate) struct Device {
    pub(crate) ledger: TokenLedger,
    pub(crate) window: u64,
    pub(crate) workers: BTreeMap<ClientId, Worker>,
    /// Launches of clients whose shares were removed.
    pub(crate) leaving: BTreeMap<ClientId, Launch>,
    pub(crate) now: u64,
    /// Time from raising an epoch until kernels see it.
    pub(crate) flag_ns: u64,
    /// How late the next completion is reported.
    pub(crate) late_ns: u64,
    /// Whether launches ignore their epochs.
    pub(crate) is_deaf: bool,
}

impl Device {
    pub(crate) fn new(config: TokenConfig) -> Device {
        Device {
            ledger: TokenLedger::new(config),
            window: config.window_ns(),
            workers: BTreeMap::new(),
            leaving: BTreeMap::new(),
            now: 0,
            flag_ns: 0,
            late_ns: 0,
            is_deaf: false,
        }
    }

    /// Sets a share; `false` if the lane cannot honour it.
    pub(crate) fn set(&mut self, client: ClientId, share: ShareSpec) -> bool {
        if self.leaving.contains_key(&client) || self.ledger.set(Nanos(self.now), client, share).is_err() {
            return false;
        }
        let new = || Worker { share, work: None, launch: None, used: BTreeMap::new() };
        self.workers.entry(client).or_insert_with(new).share = share;
        true
    }

    /// Binds a client to compute units.
    pub(crate) fn bind(&mut self, client: ClientId, span: Option<Span>) {
        self.ledger.bind(client, LaneId::DEFAULT, span);
    }

    /// Everything on the device is gone.
    pub(crate) fn lose(&mut self) {
        self.workers.values_mut().for_each(|worker| worker.launch = None);
        self.leaving.clear();
        self.ledger.lose_device();
    }

    pub(crate) fn remove(&mut self, client: ClientId) {
        let Some(worker) = self.workers.remove(&client) else { return };
        let mut recalled = Vec::new();
        assert!(self.ledger.remove(Nanos(self.now), client, &mut recalled));
        if let Some(launch) = worker.launch {
            self.leaving.insert(client, launch);
        }
        recalled.into_iter().for_each(|client| self.tell(client));
    }

    /// The time of the next event of the device or the ledger.
    pub(crate) fn next(&self) -> Option<u64> {
        self.launches().map(|launch| launch.reported).chain(self.ledger.next_grant().map(|at| at.0)).min()
    }

    /// Advances the time to `now`, and handles all events that are due.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = now;
        for client in self.workers.keys().copied().collect::<Vec<_>>() {
            self.report(client);
        }
        let over = |launch: &Launch| launch.reported <= now;
        for (client, launch) in std::mem::take(&mut self.leaving) {
            if over(&launch) {
                self.ledger.ended(
                    Nanos(now),
                    client,
                    Some(BusyTime { ended: Nanos(launch.ends), ns: launch.ends - launch.began }),
                );
            } else {
                self.leaving.insert(client, launch);
            }
        }
        self.decide();
    }

    /// Asks the ledger and issues launches.
    pub(crate) fn decide(&mut self) {
        self.ledger.begin_wants();
        for (client, worker) in &self.workers {
            if let Some(work) = worker.work {
                self.ledger.want(*client, work.class);
            }
        }
        let mut recalled = Vec::new();
        self.ledger.grant(Nanos(self.now), &mut recalled);
        recalled.into_iter().for_each(|client| self.tell(client));
        for client in self.workers.keys().copied().collect::<Vec<_>>() {
            self.issue(client);
        }
    }

    fn report(&mut self, client: ClientId) {
        let worker = self.workers.get_mut(&client).expect("a client");
        let Some(launch) = worker.launch.filter(|launch| launch.reported <= self.now) else { return };
        worker.launch = None;
        let busy = launch.ends - launch.began;
        let mut at = launch.began;
        while at < launch.ends {
            let end = launch.ends.min((at / self.window + 1) * self.window);
            *worker.used.entry(at / self.window).or_default() += end - at;
            at = end;
        }
        if let Some(work) = &mut worker.work {
            work.left = work.left.saturating_sub(busy);
            if work.left == 0 {
                worker.work = None;
            }
        }
        self.ledger.ended(Nanos(self.now), client, Some(BusyTime { ended: Nanos(self.now), ns: busy }));
    }

    fn issue(&mut self, client: ClientId) {
        let worker = self.workers.get_mut(&client).expect("a client");
        let Some(work) = worker.work.filter(|_| worker.launch.is_none()) else { return };
        if !self.ledger.may_issue(Nanos(self.now), client, work.class) {
            return;
        }
        let token = self.ledger.shares(Nanos(self.now)).find(|state| state.client == client).expect("it may issue");
        let ends = self.now + work.launch.min(work.left).max(1);
        worker.launch = Some(Launch {
            began: self.now,
            ends,
            reported: ends + std::mem::take(&mut self.late_ns),
            block: work.block,
            partition: token.occupied.millionths(),
            span: token.occupied_span,
            is_told: false,
        });
        self.ledger.issued(Nanos(self.now), client);
    }

    /// Tells the launch of a client to exit: it ends with the block that runs when it sees the
    /// epoch.
    fn tell(&mut self, client: ClientId) {
        let worker = self.workers.get_mut(&client).and_then(|worker| worker.launch.as_mut());
        let launch = worker.or(self.leaving.get_mut(&client)).expect("a client without launches is not recalled");
        assert!(!std::mem::replace(&mut launch.is_told, true), "{client:?} is recalled twice");
        if !self.is_deaf {
            let ran = self.now + self.flag_ns - launch.began;
            let ends = launch.began + ran.div_ceil(launch.block).max(1) * launch.block;
            let late = launch.reported - launch.ends;
            launch.ends = launch.ends.min(ends);
            launch.reported = (launch.ends + late).max(self.now);
        }
    }

    pub(crate) fn state(&self, client: ClientId) -> ShareState {
        self.ledger.shares(Nanos(self.now)).find(|state| state.client == client).expect("a client with a share")
    }

    /// Compute units of the clients that have launches on the device, in millionths.
    pub(crate) fn running(&self) -> u32 {
        self.launches().map(|launch| launch.partition).sum()
    }

    /// The device time of a client since a window began, up to now.
    pub(crate) fn received_since(&self, client: ClientId, window: u64) -> u64 {
        let worker = &self.workers[&client];
        let running = worker
            .launch
            .map_or(0, |launch| self.now.min(launch.ends).saturating_sub(launch.began.max(window * self.window)));
        worker.used.range(window..).map(|(_, used)| used).sum::<u64>() + running
    }

    /// Whether two clients run on a common compute unit.
    pub(crate) fn has_overlap(&self) -> bool {
        let spans: Vec<Span> = self.launches().filter_map(|launch| launch.span).collect();
        spans.iter().enumerate().any(|(at, span)| spans[at + 1..].iter().any(|other| other.overlaps(*span)))
    }

    fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.workers.values().filter_map(|worker| worker.launch.as_ref()).chain(self.leaving.values())
    }
}
