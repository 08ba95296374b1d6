//! A digest of decisions that does not change when code is renamed.

/// FNV-1a over the `Debug` text of values, in the words of the recording.
pub(super) struct Digest(pub(super) u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

/// Names that have changed since `recorded.txt` was written, with the recorded names.
const RECORDED_WORDS: [(&str, &str); 8] = [
    ("Revoke", "TakeBack"),
    ("FreeSlot", "GiveBack"),
    ("FreeState", "GiveStateBack"),
    ("MapConstants", "Show"),
    ("UnmapConstants", "Hide"),
    ("Reclaimed", "Evicted"),
    ("ChargesChanged", "BillsDue"),
    ("Absent", "Away"),
];

impl Digest {
    pub(super) fn note(&mut self, what: &impl std::fmt::Debug) {
        for word in format!("{what:?}").split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let end = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_').len();
            let (name, rest) = word.split_at(end);
            let recorded = RECORDED_WORDS.iter().find(|(new, _)| *new == name).map_or(name, |(_, old)| old);
            for byte in recorded.bytes().chain(rest.bytes()) {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
    }
}
