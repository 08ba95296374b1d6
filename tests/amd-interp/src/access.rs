//! The operation of a memory instruction, apart from its address: size, register half, sign
//! extension, atomic update.

/// The value that moves between memory and registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) bytes: u32,
    pub(crate) signed: bool,
    /// Only this half of the register is used: 0 is the lower one.
    pub(crate) half: Option<u8>,
}

/// The transfer that the end of a mnemonic names, in the spelling of gfx9 or of gfx11.
pub(crate) fn transfer(name: &str) -> Option<Transfer> {
    let (bytes, signed, half) = match name {
        "ubyte" | "u8" | "byte" | "b8" => (1, false, None),
        "sbyte" | "i8" => (1, true, None),
        "ushort" | "u16" | "short" | "b16" => (2, false, None),
        "sshort" | "i16" => (2, true, None),
        "dword" | "b32" => (4, false, None),
        "dwordx2" | "b64" => (8, false, None),
        "dwordx3" | "b96" => (12, false, None),
        "dwordx4" | "b128" => (16, false, None),
        "ubyte_d16" | "d16_u8" | "u8_d16" => (1, false, Some(0)),
        "ubyte_d16_hi" | "d16_hi_u8" | "u8_d16_hi" | "byte_d16_hi" | "d16_hi_b8" | "b8_d16_hi" => (1, false, Some(1)),
        "sbyte_d16" | "d16_i8" | "i8_d16" => (1, true, Some(0)),
        "sbyte_d16_hi" | "d16_hi_i8" | "i8_d16_hi" => (1, true, Some(1)),
        "short_d16" | "d16_b16" | "u16_d16" => (2, false, Some(0)),
        "short_d16_hi" | "d16_hi_b16" | "u16_d16_hi" | "b16_d16_hi" => (2, false, Some(1)),
        _ => return None,
    };
    Some(Transfer { bytes, signed, half })
}

/// Computes the new value from the old value, the operand and the value to compare with.
pub(crate) type Update = fn(u64, u64, u64) -> u64;

/// An atomic operation.
#[derive(Clone, Copy)]
pub(crate) struct Atomic {
    /// Size of the value: 4 or 8.
    pub(crate) bytes: u32,
    /// Whether it has a second operand, which is compared with the old value.
    pub(crate) compares: bool,
    pub(crate) update: Update,
}

/// How an address is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Flat,
    Scratch,
    Buffer,
}

/// The operation at the address.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Load(Transfer),
    Store(Transfer),
    Atomic(Atomic),
}

/// The operation of a `ds_` instruction.
#[derive(Clone, Copy)]
pub(crate) enum LdsAction {
    Load(Transfer),
    Store(Transfer),
    /// Two elements. Their offsets are multiples of the element's size, or of 64 times the size.
    Load2(Transfer, u64),
    Store2(Transfer, u64),
    Atomic {
        atomic: Atomic,
        returns: bool,
        compared_first: bool,
    },
}

/// A scalar load.
#[derive(Clone, Copy)]
pub(crate) struct ScalarLoad {
    /// Size in bytes. 1 and 2 are extended to 4.
    pub(crate) bytes: u32,
    pub(crate) signed: bool,
    pub(crate) buffer: bool,
}
