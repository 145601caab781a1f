//! The `runherd` command.
fn main() {}
