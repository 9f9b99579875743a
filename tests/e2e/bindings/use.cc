// What a program in C++ does with librados and librbd; its arguments are ceph.conf and a pool.
#include <rados/librados.hpp>
#include <rbd/librbd.hpp>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <string>

using librados::bufferlist;

static void check(bool good, const char *what) {
  if (!good) {
    std::cerr << "not so: " << what << std::endl;
    std::exit(1);
  }
}
#define CHECK(x) check(x, #x)

int main(int, char **argv) {
  librados::Rados cluster;
  CHECK(cluster.init("admin") == 0 && cluster.conf_read_file(argv[1]) == 0 && cluster.connect() == 0);
  librados::IoCtx io;
  CHECK(cluster.ioctx_create(argv[2], io) == 0);
  bufferlist text, got;
  text.append("from C++");
  librados::ObjectWriteOperation write;
  write.create(true);
  write.write_full(text);
  write.setxattr("colour", text);
  std::map<std::string, bufferlist> keys{{"a", text}, {"b", text}};
  write.omap_set(keys);
  CHECK(io.operate("cpp", &write) == 0);
  librados::ObjectWriteOperation again;
  again.create(true);
  CHECK(io.operate("cpp", &again) == -EEXIST);
  uint64_t size = 0;
  int stat_said = 1, read_said = 1;
  std::map<std::string, bufferlist> found;
  bool more = true;
  librados::ObjectReadOperation read;
  read.stat(&size, nullptr, &stat_said);
  read.read(0, 100, &got, &read_said);
  read.omap_get_vals2("", 10, &found, &more, nullptr);
  CHECK(io.operate("cpp", &read, nullptr) == 0);
  CHECK(size == 8 && stat_said == 0 && read_said == 0 && got.to_str() == "from C++" && found.size() == 2 && !more);
  // Written and read without waiting, in order.
  for (int i = 0; i < 50; i++) {
    bufferlist n;
    n.append(std::to_string(i));
    librados::AioCompletion *c = librados::Rados::aio_create_completion();
    CHECK(io.aio_write_full("cpp", c, n) == 0);
    c->release();
  }
  CHECK(io.aio_flush() == 0);
  got.clear();
  CHECK(io.read("cpp", got, 10, 0) == 2 && got.to_str() == "49");
  std::set<std::string> names;
  for (auto i = io.nobjects_begin(); i != io.nobjects_end(); ++i)
    names.insert(i->get_oid());
  CHECK(names.count("cpp") == 1);
  uint64_t snap = 0;
  CHECK(io.selfmanaged_snap_create(&snap) == 0);
  std::vector<librados::snap_t> snaps{snap};
  CHECK(io.selfmanaged_snap_set_write_ctx(snap, snaps) == 0);
  CHECK(io.write_full("cpp", text) == 0 && io.selfmanaged_snap_rollback("cpp", snap) == 0);
  got.clear();
  CHECK(io.read("cpp", got, 10, 0) == 2);
  CHECK(io.selfmanaged_snap_remove(snap) == 0);

  librbd::RBD rbd;
  int order = 22;
  CHECK(rbd.create2(io, "cpp-image", 16 << 20, RBD_FEATURE_LAYERING | RBD_FEATURE_EXCLUSIVE_LOCK, &order) == 0);
  librbd::Image image;
  CHECK(rbd.open(io, image, "cpp-image") == 0);
  // librados took the bytes out of 'text' when it wrote them.
  bufferlist data;
  data.append("from C++");
  CHECK(image.write(4096, data.length(), data) == 8 && image.flush() == 0 && image.snap_create("s") == 0);
  CHECK(image.discard(0, 16 << 20) == 16 << 20);
  bufferlist then;
  CHECK(image.snap_set("s") == 0 && image.read(4096, 8, then) == 8 && then.to_str() == "from C++");
  CHECK(image.snap_set(nullptr) == 0 && image.snap_remove("s") == 0 && image.close() == 0);
  CHECK(rbd.remove(io, "cpp-image") == 0 && io.remove("cpp") == 0);
  std::cout << "fine" << std::endl;
}
