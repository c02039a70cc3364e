// Streams between the stages of a dataflow region: those of Vitis in synthesis, queues when built by g++.
#pragma once

#ifdef __SYNTHESIS__
#include <hls_stream.h>
#else
#include <cstddef>
#include <utility>
#include <vector>

namespace hls {

// Stages run one after the other here, so a queue grows as long as a stage's output. Its memory goes to the next one.
template <typename T>
class stream {
  public:
    explicit stream(const char * /*name*/ = "") {
        if (!spare().empty()) {
            items = std::move(spare().back());
            spare().pop_back();
            items.clear();
        }
    }
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;
    ~stream() { spare().push_back(std::move(items)); }
    void write(const T &item) { items.push_back(item); }
    T read() { return items[next++]; }
    bool empty() const { return next == items.size(); }

  private:
    static std::vector<std::vector<T>> &spare() {
        static thread_local std::vector<std::vector<T>> kept;
        return kept;
    }
    std::vector<T> items;
    std::size_t next = 0;
};

}  // namespace hls
#endif
