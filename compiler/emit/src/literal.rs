//! Initial values of variables in LLVM's syntax.

use atoll_lower::variables::Value;
use std::fmt::Write as _;

/// The type and the literal of a value. `pointer` is the type of addresses. `symbol` returns the
/// global symbol of a variable, quoted if LLVM requires it.
pub fn typed_literal(value: &Value, pointer: &str, symbol: impl Fn(&str) -> String) -> String {
    if value.addresses.is_empty() {
        let (ty, literal) = bytes(&value.bytes);
        return format!("{ty} {literal}");
    }
    let (mut parts, mut from) = (Vec::new(), 0);
    for (at, name, offset) in &value.addresses {
        if from < *at {
            parts.push(bytes(&value.bytes[from..*at]));
        }
        let address = format!("getelementptr (i8, {pointer} @{}, i64 {offset})", symbol(name));
        parts.push((pointer.to_owned(), address));
        from = at + 8;
    }
    if from < value.bytes.len() {
        parts.push(bytes(&value.bytes[from..]));
    }
    let types: Vec<&str> = parts.iter().map(|(ty, _)| ty.as_str()).collect();
    let typed: Vec<String> = parts.iter().map(|(ty, literal)| format!("{ty} {literal}")).collect();
    format!("<{{ {} }}> <{{ {} }}>", types.join(", "), typed.join(", "))
}

/// The type of an array of bytes, and its literal.
fn bytes(bytes: &[u8]) -> (String, String) {
    let ty = format!("[{} x i8]", bytes.len());
    if bytes.iter().all(|byte| *byte == 0) {
        return (ty, "zeroinitializer".to_owned());
    }
    let mut text = String::from("c\"");
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "\\{byte:02X}");
    }
    (ty, text + "\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_ptx::Name;

    #[test]
    fn addresses_stand_between_the_bytes() {
        let value = Value { bytes: vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0], addresses: vec![(2, Name::new("v"), 4)] };
        let text = typed_literal(&value, "ptr", |name| format!("\"{name}\""));
        assert_eq!(text, r#"<{ [2 x i8], ptr }> <{ [2 x i8] c"\01\00", ptr getelementptr (i8, ptr @"v", i64 4) }>"#);
        let plain = Value { bytes: vec![0; 3], addresses: Vec::new() };
        assert_eq!(typed_literal(&plain, "ptr", str::to_owned), "[3 x i8] zeroinitializer");
    }
}
