//! Archives that claim more than they hold.

/// The last bytes of a zip archive of `file_bytes`, whose directory has so many members and bytes.
pub fn claims(file_bytes: u64, members: u64, directory_bytes: u64) -> Vec<u8> {
    let mut end = b"PK\x06\x06".to_vec();
    end.extend([0; 20]);
    end.extend([members, members, directory_bytes, 0].map(u64::to_le_bytes).concat());
    end.extend(b"PK\x06\x07\0\0\0\0");
    end.extend((file_bytes - CLAIMS_BYTES).to_le_bytes());
    end.extend(b"\0\0\0\0PK\x05\x06\0\0\0\0");
    end.extend([0xff; 12]);
    end.extend([0; 2]);
    end
}

/// The length of [`claims`].
pub const CLAIMS_BYTES: u64 = 98;

/// A small file that claims to be an archive with 365 million members.
pub fn bundle() -> Vec<u8> {
    const BYTES: u64 = 64 << 10;
    let mut file = vec![0; (BYTES - CLAIMS_BYTES) as usize];
    file.extend(claims(BYTES, 365_000_000, BYTES - CLAIMS_BYTES));
    file
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_claims_have_their_length() {
        assert_eq!(super::claims(1 << 30, 1, 2).len() as u64, super::CLAIMS_BYTES);
        assert_eq!(super::bundle().len(), 64 << 10);
    }
}
