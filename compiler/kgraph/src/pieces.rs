//! Digests of the weights by piece, so that opening a bundle hashes each byte once, in several
//! threads.

use crate::constants::ConstantDigest;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The digests of the weights member in the manifest. Every byte is in a piece or in the rest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pieces {
    /// Offset in the member, size, and digest; ascending and disjoint.
    pieces: Vec<(u64, u64, ConstantDigest)>,
    /// SHA-256 of all other bytes in order: the header, and the gaps between pieces.
    rest: String,
}

impl Pieces {
    /// The digests of a member that consists of a header and weights, given as (offset, bytes),
    /// ascending and disjoint; gaps are zeros.
    pub(crate) fn of(header: &[u8], weights: &[(u64, &[u8])]) -> Pieces {
        let contents: Vec<&[u8]> = weights.iter().map(|(_, bytes)| *bytes).collect();
        let placed = weights.iter().zip(ConstantDigest::of_each(&contents));
        let pieces = placed
            .map(|((offset, bytes), digest)| (header.len() as u64 + offset, bytes.len() as u64, digest))
            .collect();
        let mut rest = Sha256::new_with_prefix(header);
        let mut end = 0;
        for (offset, bytes) in weights {
            (end..*offset).for_each(|_| rest.update([0]));
            end = offset + bytes.len() as u64;
        }
        Pieces { pieces, rest: crate::hexadecimal::text(&rest.finalize()) }
    }

    /// Checks a member against the digests. Returns the digests of its pieces by offset and size,
    /// or `None` if a digest differs or a piece is outside of the member.
    pub(crate) fn check(&self, member: &[u8]) -> Option<BTreeMap<(u64, u64), ConstantDigest>> {
        let mut contents: Vec<&[u8]> = Vec::with_capacity(self.pieces.len());
        let mut rest = Sha256::new();
        let mut end = 0;
        for &(offset, bytes, _) in &self.pieces {
            let start = usize::try_from(offset).ok().filter(|&start| start >= end)?;
            let stop = start.checked_add(usize::try_from(bytes).ok()?)?;
            contents.push(member.get(start..stop)?);
            rest.update(&member[end..start]);
            end = stop;
        }
        rest.update(&member[end..]);
        let right = self.pieces.iter().map(|(.., digest)| *digest).eq(ConstantDigest::of_each(&contents));
        let all_right = right && crate::hexadecimal::text(&rest.finalize()) == self.rest;
        all_right.then(|| self.pieces.iter().map(|&(offset, bytes, digest)| ((offset, bytes), digest)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_covered() {
        let (first, second) = (vec![7; 300], vec![9; 5]);
        let pieces = Pieces::of(b"header", &[(0, &first), (512, &second)]);
        let member = [b"header", &first[..], &[0; 212], &second].concat();
        let checked = pieces.check(&member).expect("as it was written");
        assert_eq!(checked[&(6, 300)], ConstantDigest::of(&first));
        assert_eq!(checked[&(518, 5)], ConstantDigest::of(&second));
        for at in 0..member.len() {
            let mut damaged = member.clone();
            damaged[at] ^= 1;
            assert!(pieces.check(&damaged).is_none(), "byte {at}");
        }
        assert!(pieces.check(&member[1..]).is_none() && pieces.check(&[&member[..], &[0]].concat()).is_none());
    }

    #[test]
    fn invalid_pieces_are_rejected() {
        let digest = ConstantDigest::of(&[]);
        let rest = crate::hexadecimal::text(&Sha256::digest([0; 10]));
        for pieces in [
            vec![(u64::MAX, 1, digest)],
            vec![(1, u64::MAX, digest)],
            vec![(5, 0, digest), (4, 0, digest)],
            vec![(11, 0, digest)],
        ] {
            assert!(Pieces { pieces, rest: rest.clone() }.check(&[0; 10]).is_none());
        }
        assert!(Pieces { pieces: vec![(10, 0, digest)], rest }.check(&[0; 10]).is_some());
    }
}
