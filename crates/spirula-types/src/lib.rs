//! The vocabulary: ids, epochs, versions, addresses, object names and their hash.
