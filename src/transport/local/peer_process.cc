#include "transport/local/peer_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "base/try.h"

namespace kvmend::transport::local {
namespace {

Status unavailable(std::string detail, int error = 0) {
  return {Code::kUnavailable, Origin::kLocal, std::move(detail), error};
}

// /proc/<pid>/stat from field 3 on: the name (field 2) may hold anything. Empty: not readable.
std::string stat_after_name(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t end = text.rfind(')');
  return end == std::string::npos || end + 2 > text.size() ? "" : text.substr(end + 2);
}

// Field 22, in clock ticks since boot.
Result<std::uint64_t> start_time(const std::string& process) {
  const std::string text = stat_after_name(process);
  if (text.empty()) return std::unexpected(unavailable("can't read /proc/" + process + "/stat"));
  std::istringstream fields(text);
  std::string word;
  for (int field = 3; field < 22; ++field) fields >> word;
  std::uint64_t ticks = 0;
  if (!(fields >> ticks)) return std::unexpected(unavailable("no start time of " + process));
  return ticks;
}

}  // namespace

Result<wire::HostIdentity> read_host_identity() {
  wire::HostIdentity host;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  file >> text;
  std::erase(text, '-');
  if (text.size() != host.boot_id.size() * 2 ||
      !std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c) != 0; }))
    return std::unexpected(unavailable("can't read the boot id"));
  for (std::size_t i = 0; i < host.boot_id.size(); ++i)
    host.boot_id[i] = static_cast<std::byte>(std::stoul(text.substr(i * 2, 2), nullptr, 16));
  host.uid = ::geteuid();
  host.pid = static_cast<std::uint32_t>(::getpid());
  KVM_ASSIGN_OR_RETURN(host.pid_start, start_time("self"));
  return host;
}

Result<PeerProcess> PeerProcess::open(pid_t pid, std::uint64_t start) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.is_open())
    return std::unexpected(unavailable(fmt::format("pidfd_open of {}", pid), errno));
  // After the pidfd is there: what is read now is about the process that it pins, or that one is
  // dead, which `alive` will say.
  if (start != 0) {
    KVM_ASSIGN_OR_RETURN(const std::uint64_t ticks, start_time(std::to_string(pid)));
    if (ticks != start)
      return std::unexpected(unavailable(fmt::format("process {} is another one", pid)));
  }
  PeerProcess process(pid, std::move(fd));
  if (!process.alive()) return std::unexpected(unavailable(fmt::format("process {} is dead", pid)));
  return process;
}

bool PeerProcess::alive() const {
  pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 0;
}

bool PeerProcess::stopped() const {
  const std::string state = stat_after_name(std::to_string(pid_));
  return state.empty() || state.front() == 'T' || state.front() == 't';
}

ssize_t PeerProcess::read(std::span<const iovec> into, std::span<const iovec> from) const {
  const ssize_t got =
      ::process_vm_readv(pid_, into.data(), into.size(), from.data(), from.size(), 0);
  return got < 0 ? -errno : got;
}

}  // namespace kvmend::transport::local
