//! WASM modules, interpreted by wasmi with limits on instructions and memory.
//!
//! A module imports nothing. It exports:
//!
//! - `memory`: its linear memory.
//! - `alloc(bytes: i32) -> i32`: the address of this many free bytes, aligned to 8. They stay valid
//!   until `run` returns.
//! - `run(inputs: i32, input_count: i32, outputs: i32, output_count: i32) -> i32`: computes the
//!   outputs. 0 means success. With any other number the request fails, and its error states the
//!   number.
//!
//! `inputs` and `outputs` are the addresses of records, one for each tensor in the order of their
//! names. A record is four 32-bit numbers: the address of the elements, their bytes, the number of
//! dimensions, and the address of the sizes, each a 64-bit number. The module fills in the records
//! of the outputs. All numbers are little-endian.
//!
//! Every call gets a new instance, so a module keeps nothing from one call to the next.

use crate::limits::{CALL_BYTES_MAX, WASM_CALLS_MAX, WASM_TABLE_ELEMENTS_MAX};
use crate::options::WasmOptions;
use crate::tensor::{Form, Tensor};
use atoll_protocol::{DataType, check_bytes};
use wasmi::errors::{ErrorKind, MemoryError};
use wasmi::{
    Config, EnforcedLimits, Engine, Error, ExternType, FuncType, Instance, Linker, Memory, Store, StoreLimits,
    StoreLimitsBuilder, TrapCode, TypedFunc, ValType,
};

/// Bytes of a record.
const RECORD_BYTES: usize = 16;

/// Most tables of a module.
const TABLES_MAX: usize = 4;

/// Bytes of a page of linear memory.
const PAGE_BYTES: u64 = 64 << 10;

/// A checked and compiled module.
pub(crate) struct Module {
    engine: Engine,
    module: wasmi::Module,
    options: WasmOptions,
}

impl Module {
    /// Checks and compiles a module in binary form.
    pub(crate) fn new(file: &[u8], options: WasmOptions) -> Result<Module, String> {
        if !file.starts_with(b"\0asm") {
            return Err("its file is not a WASM module in binary form".into());
        }
        let mut config = Config::default();
        config.consume_fuel(true).set_max_recursion_depth(WASM_CALLS_MAX).ignore_custom_sections(true);
        config.wasm_memory64(false).wasm_multi_memory(false).enforced_limits(EnforcedLimits::strict());
        let engine = Engine::new(&config);
        let module = wasmi::Module::new(&engine, file).map_err(|error| format!("its module is not valid: {error}"))?;
        if let Some(import) = module.imports().next() {
            let (of, name) = (import.module(), import.name());
            return Err(format!("its module imports `{of}.{name}`; modules of stages import nothing"));
        }
        match module.get_export("memory") {
            Some(ExternType::Memory(memory)) => {
                let bytes = memory.minimum().saturating_mul(PAGE_BYTES);
                if bytes > options.memory_bytes {
                    let limit = options.memory_bytes;
                    return Err(format!("its module begins with {bytes} bytes of memory; `memory_bytes` is {limit}"));
                }
            }
            _ => return Err("its module does not export `memory`".into()),
        }
        check_function(&module, "alloc", 1)?;
        check_function(&module, "run", 4)?;
        Ok(Module { engine, module, options })
    }

    /// Runs a new instance.
    pub(crate) fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(usize::try_from(self.options.memory_bytes).unwrap_or(usize::MAX))
            .table_elements(WASM_TABLE_ELEMENTS_MAX)
            .instances(1)
            .memories(1)
            .tables(TABLES_MAX)
            .trap_on_grow_failure(true)
            .build();
        let mut store = Store::new(&self.engine, limits);
        store.limiter(|limits| limits);
        let cause = |error: Error| self.cause(&error);
        store.set_fuel(self.options.fuel).map_err(cause)?;
        let linker = Linker::new(&self.engine);
        let instance = linker.instantiate_and_start(&mut store, &self.module).map_err(cause)?;
        let mut call = Call::new(store, &instance).map_err(cause)?;
        let mut records = Vec::with_capacity(inputs.len() * RECORD_BYTES);
        for Tensor { form, bytes } in inputs {
            let sizes: Vec<u8> = form.shape.iter().flat_map(|size| size.to_le_bytes()).collect();
            let (data, shape) = (call.put(bytes).map_err(cause)?, call.put(&sizes).map_err(cause)?);
            // The bytes are in a memory of 32-bit addresses, so the numbers fit.
            for number in [data, bytes.len() as u32, form.shape.len() as u32, shape] {
                records.extend(number.to_le_bytes());
            }
        }
        let outputs = &self.options.outputs;
        let input_records = call.put(&records).map_err(cause)?;
        let output_records = call.put(&vec![0; outputs.len() * RECORD_BYTES]).map_err(cause)?;
        let arguments = (input_records, inputs.len() as u32, output_records, outputs.len() as u32);
        match call.run.call(&mut call.store, arguments).map_err(cause)? {
            0 => {}
            code => return Err(format!("its module failed with the number {code}")),
        }
        let mut left = CALL_BYTES_MAX;
        let taken = outputs.iter().enumerate().map(|(index, (name, declared))| {
            let at = output_records as usize + index * RECORD_BYTES;
            let tensor = call.take(at, declared, &mut left);
            tensor.map_err(|reason| format!("output `{name}` of its module {reason}"))
        });
        taken.collect()
    }

    /// The cause of an error, with the limit that was reached.
    fn cause(&self, error: &Error) -> String {
        let WasmOptions { fuel, memory_bytes, .. } = self.options;
        match (error.as_trap_code(), error.kind()) {
            (Some(TrapCode::OutOfFuel), _) => format!("its module executed more than {fuel} instructions (`fuel`)"),
            (Some(TrapCode::GrowthOperationLimited), _)
            | (_, ErrorKind::Memory(MemoryError::ResourceLimiterDeniedAllocation | MemoryError::OutOfSystemMemory)) => {
                format!("its module needs more than {memory_bytes} bytes of memory (`memory_bytes`), or a larger table")
            }
            (Some(trap), _) => format!("its module trapped: {trap}"),
            (None, _) => format!("its module cannot run: {error}"),
        }
    }
}

fn check_function(module: &wasmi::Module, name: &str, parameters: usize) -> Result<(), String> {
    let is_right = |of: &FuncType| {
        let is_i32 = |kind: &ValType| *kind == ValType::I32;
        of.params().len() == parameters && of.params().iter().all(is_i32) && matches!(of.results(), [ValType::I32])
    };
    match module.get_export(name) {
        Some(ExternType::Func(of)) if is_right(&of) => Ok(()),
        Some(_) => Err(format!("`{name}` of its module does not take {parameters} i32 and return one")),
        None => Err(format!("its module does not export `{name}`")),
    }
}

/// An instance with its memory.
struct Call {
    store: Store<StoreLimits>,
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
    run: TypedFunc<(u32, u32, u32, u32), u32>,
}

impl Call {
    fn new(store: Store<StoreLimits>, instance: &Instance) -> Result<Call, Error> {
        let memory = instance.get_memory(&store, "memory").ok_or_else(|| Error::new("it has no memory"))?;
        let alloc = instance.get_typed_func(&store, "alloc")?;
        let run = instance.get_typed_func(&store, "run")?;
        Ok(Call { store, memory, alloc, run })
    }

    /// Copies bytes into the memory of the instance, and returns their address; 0 for none.
    fn put(&mut self, bytes: &[u8]) -> Result<u32, Error> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let too_many = |_| Error::new("its inputs do not fit a memory of 32-bit addresses");
        let size = u32::try_from(bytes.len()).map_err(too_many)?;
        let address = self.alloc.call(&mut self.store, size)?;
        self.memory.write(&mut self.store, address as usize, bytes)?;
        Ok(address)
    }

    fn bytes(&self, address: usize, count: usize) -> Result<&[u8], String> {
        let end = address.checked_add(count);
        let found = end.and_then(|end| self.memory.data(&self.store).get(address..end));
        found.ok_or_else(|| format!("is outside its memory: {count} bytes at {address}"))
    }

    /// Reads the output whose record is at an address.
    fn take(&self, record: usize, declared: &Form, left: &mut usize) -> Result<Tensor, String> {
        let numbers = self.bytes(record, RECORD_BYTES)?.as_chunks::<4>().0;
        let [data, count, rank, shape] = [0, 1, 2, 3].map(|at| u32::from_le_bytes(numbers[at]) as usize);
        if rank != declared.shape.len() {
            return Err(format!("has {rank} dimensions, and is declared as {declared}"));
        }
        let sizes = self.bytes(shape, rank * 8)?.as_chunks::<8>().0;
        let shape = sizes.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
        let form = Form { datatype: declared.datatype, shape };
        if !declared.admits(&form) {
            return Err(format!("is {form}, and is declared as {declared}"));
        }
        if form.datatype != DataType::Bytes && form.bytes() != Some(count) {
            return Err(format!("has {count} bytes, which do not match {form}"));
        }
        *left = left.checked_sub(count).ok_or_else(|| format!("is too large: {CALL_BYTES_MAX} bytes in all"))?;
        let bytes = if count == 0 { Vec::new() } else { self.bytes(data, count)?.to_vec() };
        check_bytes("", form.datatype, &form.shape, &bytes)
            .map_err(|_| format!("is {form}, and its {count} bytes are other strings"))?;
        Ok(Tensor { form, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module whose `run` has this body, and whose `alloc` never frees.
    fn text(body: &str, rest: &str) -> String {
        format!(
            "(module (memory (export \"memory\") 1)
              (global $next (mut i32) (i32.const 1024))
              (func (export \"alloc\") (param $bytes i32) (result i32)
                global.get $next
                (global.set $next (i32.and (i32.add (i32.add (global.get $next) (local.get $bytes)) (i32.const 7))
                  (i32.const -8))))
              (func (export \"run\") (param $in i32) (param i32) (param $out i32) (param i32) (result i32)
                {body})
              {rest})"
        )
    }

    /// Copies the record of the first input into that of the first output.
    const SAME: &str = "(memory.copy (local.get $out) (local.get $in) (i32.const 16)) (i32.const 0)";

    fn options() -> WasmOptions {
        let form = Form { datatype: DataType::Fp32, shape: vec![-1] };
        WasmOptions { fuel: 100_000, memory_bytes: 1 << 20, outputs: [("y".to_owned(), form)].into() }
    }

    fn module(text: &str) -> Result<Module, String> {
        Module::new(&wat::parse_str(text).unwrap(), options())
    }

    fn refused(text: &str) -> String {
        module(text).err().unwrap()
    }

    fn failed(text: &str) -> String {
        module(text).unwrap().run(&[Tensor::of_floats(vec![2], &[1.0, 2.0])]).unwrap_err()
    }

    #[test]
    fn a_module_gets_and_returns_tensors() {
        let module = module(&text(SAME, "")).unwrap();
        for values in [&[1.0, 2.0][..], &[], &[3.0]] {
            let x = Tensor::of_floats(vec![values.len() as i64], values);
            assert_eq!(module.run(std::slice::from_ref(&x)).unwrap(), [x]);
        }
        let cube = Tensor::of_floats(vec![1, 1, 1], &[1.0]);
        let error = module.run(&[cube]).unwrap_err();
        assert!(error.contains("has 3 dimensions, and is declared as FP32[-1]"), "{error}");
        let error = module.run(&[Tensor::of_floats(vec![1 << 16], &vec![0.0; 1 << 16])]).unwrap_err();
        assert!(error.contains("out of bounds memory access"), "beyond its page: {error}");
    }

    #[test]
    fn modules_that_do_not_fit_are_refused() {
        let imports = r#"(module (import "env" "print" (func (param i32))))"#;
        assert!(refused(imports).contains("imports `env.print`; modules of stages import nothing"));
        assert!(refused("(module)").contains("does not export `memory`"));
        let no_run = r#"(module (memory (export "memory") 1)
            (func (export "alloc") (param i32) (result i32) (i32.const 0)))"#;
        assert!(refused(no_run).contains("does not export `run`"));
        let other = text(SAME, "").replace("(param $bytes i32)", "(param $bytes i32) (param i64)");
        assert!(refused(&other).contains("`alloc` of its module does not take 1 i32"));
        let large = text(SAME, "").replace("(memory (export \"memory\") 1)", "(memory (export \"memory\") 17)");
        assert!(refused(&large).contains("begins with 1114112 bytes of memory; `memory_bytes` is 1048576"));
        assert!(Module::new(b"(module)", options()).err().unwrap().contains("not a WASM module"));
        assert!(Module::new(b"\0asm\x01\0\0\0\xff", options()).err().unwrap().contains("not valid"));
    }

    #[test]
    fn loops_traps_and_memory_end_with_the_cause() {
        let forever = "(loop $again (br $again)) (i32.const 0)";
        assert!(failed(&text(forever, "")).contains("executed more than 100000 instructions"));
        let start = text(SAME, "(func $forever (loop $again (br $again))) (start $forever)");
        assert!(failed(&start).contains("executed more than 100000 instructions"), "at its start");
        let grow = "(loop $again (drop (memory.grow (i32.const 1))) (br $again)) (i32.const 0)";
        assert!(failed(&text(grow, "")).contains("needs more than 1048576 bytes of memory"));
        let table = text("(drop (table.grow (ref.null func) (i32.const 1000000))) (i32.const 0)", "(table 1 funcref)");
        assert!(failed(&table).contains("or a larger table"));
        assert!(failed(&text("unreachable", "")).contains("trapped: wasm `unreachable` instruction"));
        assert!(
            failed(&text("(i32.div_s (i32.const 1) (i32.const 0))", "")).contains("trapped: integer divide by zero")
        );
        let deep = text("(call $deep) (i32.const 0)", "(func $deep (call $deep))");
        assert!(failed(&deep).contains("call stack exhausted"));
        assert!(failed(&text("(i32.const 5)", "")).contains("failed with the number 5"));
        assert!(failed(&text("(i32.const 0)", "")).contains("has 0 dimensions"), "an output that it did not write");
    }

    #[test]
    fn outputs_outside_the_memory_are_refused() {
        let store = |at: u32, number: u32| format!("(i32.store offset={at} (local.get $out) (i32.const {number}))");
        // Data far outside. Its 16 bytes match the shape [4] at address 0.
        let sizes = "(i64.store (i32.const 0) (i64.const 4))";
        let outside = [sizes, &store(0, 0x7fff_0000), &store(4, 16), &store(8, 1), "(i32.const 0)"].concat();
        assert!(failed(&text(&outside, "")).contains("outside its memory: 16 bytes at 2147418112"));
        let shape = [&store(8, 1), &*store(12, 0x7fff_0000), "(i32.const 0)"].concat();
        assert!(failed(&text(&shape, "")).contains("outside its memory: 8 bytes"));
        let negative = ["(i64.store (i32.const 0) (i64.const -4))", &store(8, 1), "(i32.const 0)"].concat();
        assert!(failed(&text(&negative, "")).contains("do not match"));
        let huge = ["(i64.store (i32.const 0) (i64.const 0x7fffffffffffffff))", &store(8, 1), "(i32.const 0)"].concat();
        assert!(failed(&text(&huge, "")).contains("do not match"));
    }

    #[test]
    fn nothing_is_kept_from_one_call_to_the_next() {
        let counts = "(global.set $count (i32.add (global.get $count) (i32.const 1)))
            (if (i32.ne (global.get $count) (i32.const 1)) (then unreachable))";
        let module = module(&text(&format!("{counts} {SAME}"), "(global $count (mut i32) (i32.const 0))")).unwrap();
        let x = Tensor::of_floats(vec![1], &[1.0]);
        for _ in 0..3 {
            assert_eq!(module.run(std::slice::from_ref(&x)).unwrap(), std::slice::from_ref(&x));
        }
    }
}
