//! The messages that an executor has sent. Every message must answer an order or belong to a
//! launch, so the daemon's own orders and launches bound the number of messages.

use crate::wire::{Answer, PROTOCOL_VERSION, REPORT_MESSAGES_MAX};
use atoll_core::LaunchId;
use atoll_device::report::LaunchReport;
use atoll_device::{DeviceFacts, ImportError, Reports};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Largest number of launches whose reports are partly received: one per compute unit.
const PARTIAL_REPORTS_MAX: usize = 512;

/// Largest printed text of one launch in bytes, which is also the limit of devices.
const PRINTED_BYTES_MAX: usize = 1 << 20;

/// Received messages, and the orders that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// What the executor's jail lacks, once it runs.
    pub(super) ready: Option<Vec<String>>,
    /// Why the executor cannot run or cannot continue, in its own words.
    pub(super) refusal: Option<String>,
    /// The facts of its device, if only the executor knows them.
    pub(super) facts: Option<DeviceFacts>,
    /// A handle of its memory, for a second executor.
    pub(super) memory: Option<Vec<u8>>,
    /// When each unanswered order to map constants was sent, oldest first.
    pub(super) showing: VecDeque<Instant>,
    /// Modules being loaded, with the time of the order.
    pub(super) loading: BTreeMap<u32, Instant>,
    /// Modules that were loaded (`None`) or refused, with the reason.
    pub(super) loaded: BTreeMap<u32, Option<String>>,
    /// The unanswered order for memory of another process, and when it was sent.
    pub(super) importing: Option<(u64, Instant)>,
    /// The last answer to such an order: the size of the memory, or why it failed.
    pub(super) imported: Option<(u64, Result<u64, ImportError>)>,
    partial_reports: Vec<(u64, LaunchReport)>,
    pub(super) reports: Reports,
    /// Received messages that carry reports.
    report_messages: u64,
}

impl Inbox {
    /// The number of answers that are due and for which the engine may be waiting.
    pub(super) fn answers_due(&self) -> usize {
        self.loading.len() + self.showing.len() + usize::from(self.ready.is_none())
    }

    /// The oldest due answer of each kind (loads, mappings, imports): when it was requested, and its
    /// time limit.
    pub(super) fn pending(&self, answer_within: Duration, load_within: Duration) -> Vec<(Instant, Duration)> {
        let loads = self.loading.values().min().map(|since| (*since, load_within));
        let maps = self.showing.front().map(|since| (*since, answer_within));
        let imports = self.importing.map(|(_, since)| (since, answer_within));
        loads.into_iter().chain(maps).chain(imports).collect()
    }

    /// Handles a message. `launches` is the number of all launches that were submitted to the
    /// executor. Returns whether the message completes a report. The error names a violation of the
    /// protocol.
    pub(super) fn take(&mut self, answer: Answer, has_descriptors: bool, launches: u64) -> Result<bool, String> {
        if has_descriptors {
            return Err("it sent descriptors".to_owned());
        }
        match answer {
            Answer::Ready { version: PROTOCOL_VERSION, missing } if self.ready.is_none() => self.ready = Some(missing),
            Answer::Ready { version: PROTOCOL_VERSION, .. } => return Err("it said twice that it runs".to_owned()),
            Answer::Ready { version, .. } => {
                return Err(format!("it uses version {version} of the protocol, not {PROTOCOL_VERSION}"));
            }
            Answer::Device { facts, memory } if self.facts.is_none() && self.ready.is_none() => {
                (self.facts, self.memory) = (Some(facts), memory);
            }
            Answer::Device { .. } => return Err("it described its device again".to_owned()),
            Answer::Refused { reason } => self.refusal = Some(reason),
            Answer::Loaded { module, refusal } => {
                self.loading.remove(&module).ok_or("it answered a load that was not requested")?;
                self.loaded.insert(module, refusal);
            }
            Answer::Shown => {
                self.showing.pop_front().ok_or("it answered a mapping that was not requested")?;
            }
            Answer::Imported { order, bytes, refusal, may_retry } => {
                let due = self.importing.take_if(|(due, _)| *due == order);
                due.ok_or("it answered an import that was not requested")?;
                let done = match refusal {
                    None => Ok(bytes),
                    Some(reason) if may_retry => Err(ImportError::Unavailable(reason)),
                    Some(reason) => Err(ImportError::Refused(reason)),
                };
                self.imported = Some((order, done));
            }
            report @ Answer::Report { .. } => return self.take_report(report, launches),
        }
        Ok(false)
    }

    /// Handles a part of a report. Returns whether it is the last part.
    fn take_report(&mut self, report: Answer, launches: u64) -> Result<bool, String> {
        let Answer::Report { launch, fault, printed, printed_lost_bytes, is_last } = report else { return Ok(false) };
        self.report_messages += 1;
        if self.report_messages > launches.saturating_mul(REPORT_MESSAGES_MAX) {
            return Err(format!("it sent {} parts of reports for {launches} launches", self.report_messages));
        }
        let at = self.partial_reports.iter().position(|(id, _)| *id == launch).unwrap_or(self.partial_reports.len());
        if at >= PARTIAL_REPORTS_MAX {
            return Err("it sent too many partial reports".to_owned());
        }
        if at == self.partial_reports.len() {
            self.partial_reports.push((launch, LaunchReport::default()));
        }
        let partial = &mut self.partial_reports[at].1;
        partial.printed.push_str(&printed);
        partial.printed_lost_bytes = printed_lost_bytes;
        partial.fault = partial.fault.take().or(fault);
        if partial.printed.len() > PRINTED_BYTES_MAX {
            return Err("it printed more than the limit".to_owned());
        }
        if is_last {
            let (launch, report) = self.partial_reports.swap_remove(at);
            self.reports.put(LaunchId(launch), report);
        }
        Ok(is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(launch: u64, is_last: bool) -> Answer {
        Answer::Report { launch, fault: None, printed: "x".to_owned(), printed_lost_bytes: 0, is_last }
    }

    #[test]
    fn a_message_that_nothing_asked_for_is_a_violation() {
        let ready = || Answer::Ready { version: PROTOCOL_VERSION, missing: Vec::new() };
        let facts = || Answer::Device { facts: DeviceFacts::default(), memory: None };
        let mut inbox = Inbox::default();
        assert_eq!(inbox.take(facts(), false, 0), Ok(false));
        assert!(inbox.take(facts(), false, 0).is_err());
        assert_eq!(inbox.take(ready(), false, 0), Ok(false));
        let imported = |order| Answer::Imported { order, bytes: 8, refusal: None, may_retry: false };
        for answer in
            [ready(), facts(), Answer::Shown, Answer::Loaded { module: 0, refusal: None }, imported(1), piece(1, true)]
        {
            assert!(inbox.take(answer.clone(), false, 0).is_err(), "{answer:?}");
        }
        inbox.showing.push_back(Instant::now());
        assert!(inbox.take(Answer::Shown, true, 0).is_err());
        assert_eq!(inbox.take(Answer::Shown, false, 0), Ok(false));
        assert!(inbox.take(Answer::Shown, false, 0).is_err());
        inbox.importing = Some((2, Instant::now()));
        assert!(inbox.take(imported(1), false, 0).is_err());
        assert_eq!(inbox.take(imported(2), false, 0), Ok(false));
        assert_eq!(inbox.imported, Some((2, Ok(8))));
        assert!(inbox.take(imported(2), false, 0).is_err());
        for may_retry in [false, true] {
            inbox.importing = Some((3, Instant::now()));
            let failed = Answer::Imported { order: 3, bytes: 0, refusal: Some("why".to_owned()), may_retry };
            assert_eq!(inbox.take(failed, false, 0), Ok(false));
            let Some((3, Err(error))) = inbox.imported.take() else { panic!("no answer to the import") };
            assert_eq!(matches!(error, ImportError::Unavailable(_)), may_retry, "{error}");
        }
    }

    #[test]
    fn the_parts_of_reports_are_bounded_by_the_launches() {
        let mut inbox = Inbox::default();
        for _ in 1..REPORT_MESSAGES_MAX {
            assert_eq!(inbox.take(piece(1, false), false, 1), Ok(false));
        }
        assert_eq!(inbox.take(piece(1, true), false, 1), Ok(true));
        assert_eq!(inbox.reports.take(LaunchId(1)).unwrap().printed.len() as u64, REPORT_MESSAGES_MAX);
        let why = inbox.take(piece(1, true), false, 1).unwrap_err();
        assert_eq!(why, format!("it sent {} parts of reports for 1 launches", REPORT_MESSAGES_MAX + 1));
        assert_eq!(inbox.take(piece(2, true), false, 2), Ok(true));
    }
}
