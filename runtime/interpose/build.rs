//! Gives the library the soname under which programs look for it, `libcuda.so.1`, whatever its file
//! is called.

fn main() {
    let is_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    if is_linux {
        let mut directives = String::from("cargo:rerun-if-changed=build.rs\n");
        directives.push_str("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1\n");
        // A build script passes options to cargo on standard output.
        std::io::Write::write_all(&mut std::io::stdout(), directives.as_bytes()).expect("cargo reads the output");
    }
}
