//! Templates of kernels: PTX with loops, conditions and placeholders.
//!
//! - `${name}` is a variable; `${2*rows+1}` is a sum of products of numbers and variables.
//! - `@for name in 0..4` or `@for name in a b c`, `@if left right` (if both are equal), `@end`: at
//!   the beginning of a line.
//! - `@include name` is the template that the variable has as its value.
//! - `@load TYPE REGISTER PREDICATE ADDRESS` loads a number into a register of the type in which the
//!   kernel computes, or 0 if the predicate is false; `@store TYPE PREDICATE ADDRESS REGISTER` stores
//!   it. `@scale REGISTER BITS ADDRESS` reads a factor from its bits, or from memory if the predicate
//!   `%on_device` holds: two registers, so that no number is taken for an address. They use the
//!   registers `%h` (16 bits) and `%t`.
//!
//! Templates are part of a library; a mistake in one is found by the tests of its `kernels`.

use crate::number::Number;

/// The oldest devices that kernels run on: Ampere, which converts to bf16.
pub const TARGET: &str = "sm_80";

/// The variables of a template, the innermost last.
pub type Variables = Vec<(String, String)>;

/// Fills in a template of a kernel that computes with numbers of type `sum`.
pub fn fill_in(template: &str, sum: Number, mut variables: Variables) -> String {
    let lines: Vec<&str> = template.lines().collect();
    let mut text = String::new();
    expand(&lines, sum, &mut variables, &mut text);
    text
}

fn expand(lines: &[&str], sum: Number, variables: &mut Variables, text: &mut String) {
    let mut rest = lines;
    while let Some((line, after)) = rest.split_first() {
        rest = after;
        if let Some(head) = line.strip_prefix("@for ") {
            let (body, after) = block(rest);
            rest = after;
            let (name, values) = head.split_once(" in ").expect("a loop of a template has `in`");
            for value in values_of(&fill(values, variables)) {
                variables.push((name.to_owned(), value));
                expand(body, sum, variables, text);
                variables.pop();
            }
        } else if let Some(condition) = line.strip_prefix("@if ") {
            let (body, after) = block(rest);
            rest = after;
            let condition = fill(condition, variables);
            let mut words = condition.split_whitespace();
            if words.next() == words.next() {
                expand(body, sum, variables, text);
            }
        } else if let Some(name) = line.strip_prefix("@include ") {
            let part = find(name, variables).expect("an included template is a variable").to_owned();
            expand(&part.lines().collect::<Vec<_>>(), sum, variables, text);
        } else if line.starts_with('@') {
            for statement in statements(&fill(line, variables), sum) {
                text.push_str("    ");
                text.push_str(&statement);
                text.push('\n');
            }
        } else {
            text.push_str(&fill(line, variables));
            text.push('\n');
        }
    }
}

/// Splits lines after the `@for` or `@if` of a block: its body, and the lines after its `@end`.
fn block<'a, 'b>(lines: &'a [&'b str]) -> (&'a [&'b str], &'a [&'b str]) {
    let mut depth = 1;
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("@for ") || line.starts_with("@if ") {
            depth += 1;
        } else if *line == "@end" {
            depth -= 1;
            if depth == 0 {
                return (&lines[..at], &lines[at + 1..]);
            }
        }
    }
    (lines, &[])
}

/// The values of a loop: `0..4`, or words.
fn values_of(list: &str) -> Vec<String> {
    match list.split_once("..") {
        Some((from, to)) => {
            let bound = |text: &str| text.trim().parse::<u32>().expect("a bound of a template is a number");
            (bound(from)..bound(to)).map(|value| value.to_string()).collect()
        }
        None => list.split_whitespace().map(str::to_owned).collect(),
    }
}

/// Replaces the placeholders of a line.
fn fill(line: &str, variables: &Variables) -> String {
    let mut filled = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, from)) = rest.split_once("${") {
        let (expression, after) = from.split_once('}').expect("a placeholder of a template has an end");
        filled.push_str(before);
        filled.push_str(&value(expression, variables));
        rest = after;
    }
    filled.push_str(rest);
    filled
}

/// The value of a placeholder.
fn value(expression: &str, variables: &Variables) -> String {
    if let Some(text) = find(expression, variables) {
        return text.to_owned();
    }
    let factor = |text: &str| -> u32 {
        let number = find(text, variables).unwrap_or(text);
        number.parse().expect("a factor of a template is a number")
    };
    let sum: u32 = expression.split('+').map(|term| term.split('*').map(factor).product::<u32>()).sum();
    sum.to_string()
}

fn find<'a>(name: &str, variables: &'a Variables) -> Option<&'a str> {
    variables.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// The instructions of `@load`, `@store` or `@scale`.
fn statements(line: &str, sum: Number) -> Vec<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match *words.as_slice() {
        ["@load", number, register, predicate, address] => load(number, register, (predicate, address), sum),
        ["@store", number, predicate, address, register] => store(number, (predicate, address), register),
        ["@scale", register, bits, address] => scale(register, bits, address, sum),
        _ => unreachable!("a template has no other directives: {line}"),
    }
}

fn load(number: &str, register: &str, (predicate, address): (&str, &str), sum: Number) -> Vec<String> {
    let (name, zero) = (sum.name(), sum.zero());
    match number {
        "f16" => vec![
            "mov.b16 %h, 0;".to_owned(),
            format!("@{predicate} ld.global.b16 %h, [{address}];"),
            format!("cvt.f32.f16 {register}, %h;"),
        ],
        "bf16" => vec![
            "mov.b16 %h, 0;".to_owned(),
            format!("@{predicate} ld.global.b16 %h, [{address}];"),
            "cvt.u32.u16 %t, %h;".to_owned(),
            "shl.b32 %t, %t, 16;".to_owned(),
            format!("mov.b32 {register}, %t;"),
        ],
        "s8" => vec![
            "mov.u32 %t, 0;".to_owned(),
            format!("@{predicate} ld.global.s8 %t, [{address}];"),
            if sum == Number::S32 {
                format!("mov.s32 {register}, %t;")
            } else {
                format!("cvt.rn.f32.s32 {register}, %t;")
            },
        ],
        _ => vec![
            format!("mov.{name} {register}, {zero};"),
            format!("@{predicate} ld.global.{name} {register}, [{address}];"),
        ],
    }
}

fn store(number: &str, (predicate, address): (&str, &str), register: &str) -> Vec<String> {
    if number == "f16" || number == "bf16" {
        vec![format!("cvt.rn.{number}.f32 %h, {register};"), format!("@{predicate} st.global.b16 [{address}], %h;")]
    } else {
        vec![format!("@{predicate} st.global.{number} [{address}], {register};")]
    }
}

fn scale(register: &str, bits: &str, address: &str, sum: Number) -> Vec<String> {
    let name = sum.name();
    let from_memory = format!("@%on_device ld.global.{name} {register}, [{address}];");
    if sum == Number::F64 {
        return vec![format!("mov.b64 {register}, {bits};"), from_memory];
    }
    let mut statements = vec![format!("cvt.u32.u64 %t, {bits};"), format!("mov.b32 {register}, %t;"), from_memory];
    if sum == Number::F32 {
        statements.push("mov.b16 %h, 0;".to_owned());
        statements.push(format!("@%is_half ld.global.b16 %h, [{address}];"));
        statements.push(format!("@%is_half cvt.f32.f16 {register}, %h;"));
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str) -> String {
        let variables = [("rows", "3"), ("type", "f32")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        fill_in(template, Number::F32, variables.to_vec())
    }

    #[test]
    fn loops_conditions_and_sums_are_filled_in() {
        let template = "@for i in 0..2\n@for x in a b\n${x}${i}: ${2*rows+i}\n@end\n@end\n@if ${type} f64\nno\n@end\n\
                        @if ${type} f32\nyes $${rows}\n@end\n";
        assert_eq!(filled(template), "a0: 6\nb0: 6\na1: 7\nb1: 7\nyes $3\n");
    }

    #[test]
    fn included_templates_are_filled_in() {
        let variables = [("part", "@if ${type} f32\n${type}\n@end"), ("type", "f32")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        assert_eq!(fill_in("a\n@include part\nb\n", Number::F32, variables), "a\nf32\nb\n");
    }

    #[test]
    fn narrow_numbers_are_converted() {
        assert_eq!(filled("@store bf16 %p %d %x\n"), "    cvt.rn.bf16.f32 %h, %x;\n    @%p st.global.b16 [%d], %h;\n");
        assert!(filled("@load s8 %x %p %d\n").ends_with("    cvt.rn.f32.s32 %x, %t;\n"));
        assert!(filled("@load f32 %x %p %d\n").starts_with("    mov.f32 %x, 0f00000000;\n"));
    }
}
