//! Tests against bytes and tools that are not ours.

mod it {
    mod corpus;
    mod dumps;
    mod golden;
    mod support;
}
