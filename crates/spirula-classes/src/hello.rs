//! Class `hello`: the example of Ceph's documentation, which tests of client libraries call.

use crate::{Call, Caller, Class, R, RWP, Stop, W, WP, fail, method};
use bytes::Bytes;
use spirula_types::{EntityAddr, errno};

pub(crate) const CLASS: Class = Class {
    name: "hello",
    methods: &[
        method("say_hello", R, say_hello),
        method("record_hello", WP, record_hello),
        method("write_return_data", W, write_return_data),
        method("writes_dont_return_data", W, write_return_data),
        method("write_too_much_return_data", W, write_too_much_return_data),
        method("replay", R, replay),
        method("turn_it_to_11", RWP, turn_it_to_11),
        method("bad_reader", W, bad_reader),
        method("bad_writer", R, bad_writer),
    ],
};

/// The longest name that is greeted, bytes.
const LONGEST_NAME: usize = 100;
/// Bytes of a recorded greeting that are read.
const READ: u64 = 1100;

fn greeting(input: &[u8]) -> Result<Bytes, Stop> {
    if input.len() > LONGEST_NAME {
        return fail(errno::EINVAL);
    }
    let name = if input.is_empty() { b"world" } else { input };
    Ok([b"Hello, ", name, b"!"].concat().into())
}

/// Notes who did something.
fn sign(call: &mut Call<'_>, attr: &[u8]) -> Result<(), Stop> {
    let Caller { name, addr } = call.object.caller();
    let text = match addr.kind {
        // What clients are known by: Ceph writes no kind before it.
        EntityAddr::KIND_ANY => format!("{name} {}", addr.plain()),
        _ => format!("{name} {addr}"),
    };
    call.object.set_attr(attr, text.into())
}

fn say_hello(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.output.raw(&greeting(&call.input)?);
    Ok(0)
}

fn record_hello(call: &mut Call<'_>) -> Result<i32, Stop> {
    let text = greeting(&call.input)?;
    match call.object.stat() {
        Ok(_) => return fail(errno::EEXIST),
        Err(Stop::Errno(_)) => {}
        Err(Stop::Later) => return Err(Stop::Later),
    }
    call.object.write_full(text)?;
    sign(call, b"said_by")?;
    Ok(0)
}

/// Shows that a failure takes the change back, and that output and result of a change arrive only
/// if they are asked for.
fn write_return_data(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.object.set_attr(b"foo", Bytes::from_static(b"bar"))?;
    if !call.input.is_empty() {
        call.output.raw(b"too much input data!");
        return fail(errno::EINVAL);
    }
    call.output.raw(b"you might see this");
    Ok(42)
}

fn write_too_much_return_data(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.object.set_attr(b"foo", Bytes::from_static(b"bar"))?;
    call.output.raw(&[b'x'; 1024]);
    Ok(42)
}

fn replay(call: &mut Call<'_>) -> Result<i32, Stop> {
    let text = call.object.read(0, READ)?;
    call.output.raw(&text);
    Ok(0)
}

fn turn_it_to_11(call: &mut Call<'_>) -> Result<i32, Stop> {
    if !call.input.is_empty() {
        return fail(errno::EINVAL);
    }
    let text = call.object.read(0, READ)?;
    call.object.write_full(text.to_ascii_uppercase().into())?;
    sign(call, b"amplified_by")?;
    Ok(0)
}

/// Reads, which it is not registered for.
fn bad_reader(call: &mut Call<'_>) -> Result<i32, Stop> {
    let text = call.object.read(0, 100)?;
    call.output.raw(&text);
    Ok(0)
}

/// Writes, which it is not registered for.
fn bad_writer(call: &mut Call<'_>) -> Result<i32, Stop> {
    let data = call.input.clone();
    call.object.write_full(data)?;
    Ok(0)
}
